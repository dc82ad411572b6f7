"""Families of local models that exchange files may carry; each registers itself."""
