"""The room `study`."""
