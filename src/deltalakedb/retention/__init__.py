"""Expiry of old versions: to an archive, and back."""
