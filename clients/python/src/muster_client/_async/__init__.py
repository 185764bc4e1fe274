"""The client with `await`, of which the one without is made."""
