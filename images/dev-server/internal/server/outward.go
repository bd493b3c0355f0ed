package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// errClosed rejects forwarding to closed addresses, such as cloud metadata, for every user.
var errClosed = errors.New("forwarding to this address is not allowed")

// closedNetworks are where clouds tell a machine its secrets, also as networks that speak IPv6 alone write it.
var closedNetworks = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), // link-local: AWS, Google Cloud and most others
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),       // AWS
	netip.MustParsePrefix("fd20:ce::/32"),        // Google Cloud
	netip.MustParsePrefix("64:ff9b::a9fe:0/112"), // NAT64
	netip.MustParsePrefix("2002:a9fe::/32"),      // 6to4
}

// newDialer connects where clients want to go (-L, -D, -W). What a name means is looked at when it is known and right
// before it is used, so that it cannot mean one thing when asked and another when connected.
func newDialer() *net.Dialer {
	cluster, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST")) // not valid where there is none
	return &net.Dialer{
		Timeout: connectTime,
		Control: func(_, address string, _ syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(address); err != nil || isClosed(to.Addr(), cluster) {
				return errClosed
			}
			return nil
		},
	}
}

func isClosed(address, cluster netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for _, network := range closedNetworks {
		if network.Contains(address) {
			return true
		}
	}
	return cluster.IsValid() && address == cluster.Unmap()
}
