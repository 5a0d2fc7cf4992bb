"""The room `compose`."""
