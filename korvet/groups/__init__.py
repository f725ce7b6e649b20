"""Consumer groups: state machines that are told the time, and the coordinator that stands around them."""
