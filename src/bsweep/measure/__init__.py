"""The room `measure`."""
