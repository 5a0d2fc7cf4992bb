"""The room `train`."""
