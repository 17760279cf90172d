"""Old versions go out: expiry, the archive, and the way back."""
