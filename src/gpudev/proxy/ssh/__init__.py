"""ssh sessions: the WebSocket handshake, the tunnel of one session, and all sessions of this process."""
