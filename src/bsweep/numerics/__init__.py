"""The room `numerics`."""
