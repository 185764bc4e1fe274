# Made from _async/ by generate.py: change that.
"""The client with `await`, of which the one without is made."""
