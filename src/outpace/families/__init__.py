"""Families of models: one file each, with the table of its tensors."""
