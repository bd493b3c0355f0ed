"""Commands that work on a dev server: ssh, Jupyter, collaborators."""
