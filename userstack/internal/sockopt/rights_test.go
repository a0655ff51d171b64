// SPDX-License-Identifier: Apache-2.0

package sockopt

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

const (
	rawRight   = rights.Rights(1 << unix.CAP_NET_RAW)
	adminRight = rights.Rights(1 << unix.CAP_NET_ADMIN)
)

// The main goroutine keeps the main thread, because /proc shows this thread as the
// process. Tests leave other threads with changed rights.
var _ = func() bool { runtime.LockOSThread(); return true }()

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || rights.Of("self")&(rawRight|adminRight) != rawRight|adminRight {
		t.Skip("needs root, with CAP_NET_RAW and CAP_NET_ADMIN, to give them up")
	}
}

// TestWithRights: which options the kernel is asked to set at all, and with which rights.
func TestWithRights(t *testing.T) {
	needRoot(t)
	const set, get = true, false
	for _, tt := range []struct {
		set         bool
		level, name int
		with        rights.Rights // the rights that the kernel sees, of NET_RAW and NET_ADMIN
		refused     error
	}{
		{set, unix.SOL_SOCKET, unix.SO_KEEPALIVE, rawRight | adminRight, nil}, // set without a check of the rights
		{set, unix.IPPROTO_TCP, unix.TCP_NODELAY, rawRight | adminRight, nil},
		{set, unix.SOL_SOCKET, unix.SO_MARK, rawRight, nil},
		{set, unix.SOL_SOCKET, unix.SO_DEBUG, rawRight, nil},
		{get, unix.SOL_SOCKET, unix.SO_INCOMING_CPU, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_CONGESTION, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_MD5SIG, rawRight, nil},
		{get, unix.IPPROTO_TCP, unix.TCP_REPAIR, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0, syscall.EPERM},
		{set, unix.IPPROTO_TCP, unix.TCP_ULP, 0, syscall.EPERM},
		{set, unix.IPPROTO_IP, unix.IP_TRANSPARENT, rawRight, nil},
		{set, unix.IPPROTO_IP, 64, 0, nil},   // IPT_SO_SET_REPLACE
		{set, unix.IPPROTO_IP, 128, 0, nil},  // EBT_SO_SET_ENTRIES
		{set, unix.IPPROTO_IPV6, 64, 0, nil}, // IP6T_SO_SET_REPLACE
		{get, unix.IPPROTO_IP, 80, rawRight, nil},
		{set, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, rawRight | adminRight, nil},
		{set, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, rawRight, nil},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, 0, syscall.EPERM},
		{get, unix.SOL_SOCKET, unix.SO_GET_FILTER, 0, syscall.EPERM},
		{get, unix.SOL_SOCKET, 77 /* SO_PEERPIDFD */, 0, syscall.EPERM},
		{set, unix.SOL_TLS, 1, 0, syscall.ENOPROTOOPT},
		{set, unix.SOL_PACKET, 1, 0, syscall.ENOPROTOOPT},
		{get, -1, -1, 0, syscall.ENOPROTOOPT},
	} {
		called := false
		err := WithRights(rawRight, tt.set, tt.level, tt.name, func() error {
			called = true
			if got := rights.Of(strconv.Itoa(unix.Gettid())) & (rawRight | adminRight); got != tt.with {
				t.Errorf("set %v, level %d, option %d: rights %#x, want %#x", tt.set, tt.level, tt.name, uint64(got), uint64(tt.with))
			}
			return nil
		})
		if err != tt.refused || called != (err == nil) {
			t.Errorf("set %v, level %d, option %d: %v, want %v; called: %v", tt.set, tt.level, tt.name, err, tt.refused, called)
		}
	}
}
