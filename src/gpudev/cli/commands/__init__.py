"""The commands, by subject, each with its helpers; beside the folders, what commands of several subjects share."""
