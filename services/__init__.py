"""What runs: intake, scheduler, runner, replies, projector, HTTP surfaces, command line, wiring."""
