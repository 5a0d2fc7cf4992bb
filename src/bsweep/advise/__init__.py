"""The room `advise`."""
