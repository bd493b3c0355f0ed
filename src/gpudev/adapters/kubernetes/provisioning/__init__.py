"""Creating, changing and deleting the objects of dev servers."""
