// Command pause holds a pod's namespaces open, and is the first process of the real node's own.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	heard := make(chan os.Signal, 16)
	signal.Notify(heard, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for what := range heard {
		if what != syscall.SIGCHLD {
			return
		}
		// Whoever loses its parent becomes ours to bury.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
