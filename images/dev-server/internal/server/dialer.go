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

// closedNetworks are cloud metadata networks, also in their IPv6 translations.
var closedNetworks = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), // link-local: AWS, Google Cloud and most others
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),       // AWS
	netip.MustParsePrefix("fd20:ce::/32"),        // Google Cloud
	netip.MustParsePrefix("100.100.100.200/32"),  // Alibaba Cloud
	netip.MustParsePrefix("192.0.0.192/32"),      // Oracle Cloud
	netip.MustParsePrefix("168.63.129.16/32"),    // Azure
	netip.MustParsePrefix("fd00:42::42/128"),     // Scaleway
	netip.MustParsePrefix("64:ff9b::a9fe:0/112"), // NAT64 of all IPv4 ones
	netip.MustParsePrefix("64:ff9b::6464:64c8/128"),
	netip.MustParsePrefix("64:ff9b::c000:c0/128"),
	netip.MustParsePrefix("64:ff9b::a83f:8110/128"),
	netip.MustParsePrefix("2002:a9fe::/32"), // 6to4 of all IPv4 ones
	netip.MustParsePrefix("2002:6464:64c8::/48"),
	netip.MustParsePrefix("2002:c000:c0::/48"),
	netip.MustParsePrefix("2002:a83f:8110::/48"),
}

// newDialer connects to forwarding targets (-L, -D, -W). The resolved address is checked right before connecting, so
// that a name cannot resolve differently between check and use.
func newDialer() *net.Dialer {
	cluster, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST")) // invalid outside Kubernetes
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
