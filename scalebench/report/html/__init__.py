"""One page that holds a whole report and asks nobody for anything. Layer 3."""
