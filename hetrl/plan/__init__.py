"""The plan: an immutable value, its versioned JSON form, and what the runtime can carry out."""
