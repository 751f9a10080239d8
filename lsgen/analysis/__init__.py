"""What is done with a suite afterwards; reads suites only."""
