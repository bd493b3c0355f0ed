"""Creation, update and deletion of the objects of dev servers."""
