"""The plumbing that the services and the SDK share: errors, names, channels, servers. It imports the contract only."""
