"""One run: its parent and workers, the launchers that start them, the jobs of a scheduler, and the assembled record."""
