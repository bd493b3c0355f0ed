"""ssh through HTTPS: WebSockets on one side, dev servers' ssh servers on the other, bytes in between."""
