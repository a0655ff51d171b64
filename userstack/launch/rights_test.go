// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	_ "smcr/internal/testing/firstthread"

	"smcr/internal/testing/testkind"
)

// someone is a user without privileges.
const someone = 65534

// rightsOptions are what the probe sets, then reads. Those with a name in
// rightsDenied take a capability.
var rightsOptions = []struct {
	text        string
	level, name int
	value       []byte
}{
	{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, int32Value(1)},
	{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int32Value(7)},
	{"SO_PRIORITY 6", unix.SOL_SOCKET, unix.SO_PRIORITY, int32Value(6)},
	{"SO_PRIORITY 7", unix.SOL_SOCKET, unix.SO_PRIORITY, int32Value(7)},
	{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, int32Value(50000)},
	{"SO_SNDBUFFORCE", unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, int32Value(100000)},
	{"SO_RCVBUFFORCE", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, int32Value(100000)},
	{"SO_DEBUG", unix.SOL_SOCKET, unix.SO_DEBUG, int32Value(1)},
	{"SO_BINDTODEVICE", unix.SOL_SOCKET, unix.SO_BINDTODEVICE, []byte("lo\x00")},
	{"SO_BINDTODEVICE again", unix.SOL_SOCKET, unix.SO_BINDTODEVICE, []byte("\x00")},
	{"SO_TXTIME", unix.SOL_SOCKET, unix.SO_TXTIME, int32Value(unix.CLOCK_TAI, 0)},
	{"SO_BUSY_POLL", unix.SOL_SOCKET, unix.SO_BUSY_POLL, int32Value(100000)},
	{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, int32Value(1)},
	{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int32Value(9)},
	{"TCP_REPAIR", unix.IPPROTO_TCP, unix.TCP_REPAIR, int32Value(1)},
	{"TCP_CONGESTION reno", unix.IPPROTO_TCP, unix.TCP_CONGESTION, []byte("reno")},
	{"TCP_CONGESTION dctcp", unix.IPPROTO_TCP, unix.TCP_CONGESTION, []byte("dctcp")},
	{"TCP_CONGESTION none", unix.IPPROTO_TCP, unix.TCP_CONGESTION, []byte("nosuchthing")},
	{"TCP_NOTSENT_LOWAT", unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, int32Value(10000)},
	{"TCP 9999", unix.IPPROTO_TCP, 9999, int32Value(1)},
	{"IP_TOS", unix.IPPROTO_IP, unix.IP_TOS, int32Value(16)},
	{"IP_TRANSPARENT", unix.IPPROTO_IP, unix.IP_TRANSPARENT, int32Value(1)},
	{"IP_FREEBIND", unix.IPPROTO_IP, unix.IP_FREEBIND, int32Value(1)},
	{"IP_OPTIONS", unix.IPPROTO_IP, unix.IP_OPTIONS, []byte{1, 1, 1, 1}},
	{"IP_XFRM_POLICY", unix.IPPROTO_IP, unix.IP_XFRM_POLICY, int32Value(1, 2, 3)},
	{"IP_IPSEC_POLICY", unix.IPPROTO_IP, unix.IP_IPSEC_POLICY, int32Value(1, 2, 3)},
	{"IPT_SO_SET_REPLACE", unix.IPPROTO_IP, 64, make([]byte, 100)},
	{"IP_VS_SO_SET_FLUSH", unix.IPPROTO_IP, 1157, make([]byte, 4)},
	{"IPV6_TCLASS", unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32Value(16)},
	{"IPV6_TRANSPARENT", unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, int32Value(1)},
	{"IPV6_HOPOPTS", unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, []byte{0, 0, 1, 4, 0, 0, 0, 0}},
	{"IPV6_DSTOPTS", unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, []byte{0, 0, 1, 4, 0, 0, 0, 0}},
	{"IPV6_XFRM_POLICY", unix.IPPROTO_IPV6, unix.IPV6_XFRM_POLICY, int32Value(1, 2, 3)},
	{"IPV6_FREEBIND", unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, int32Value(1)},
}

// rightsDenied are refused to who has no capabilities, on an IPv6 socket.
var rightsDenied = []string{
	"SO_MARK", "SO_PRIORITY 7", "SO_SNDBUFFORCE", "SO_RCVBUFFORCE", "SO_DEBUG", "SO_BINDTODEVICE again", "TCP_REPAIR",
	"IP_TRANSPARENT", "IP_XFRM_POLICY", "IP_IPSEC_POLICY", "IPV6_TRANSPARENT", "IPV6_HOPOPTS", "IPV6_DSTOPTS", "IPV6_XFRM_POLICY",
}

func int32Value(v ...uint32) []byte {
	var b []byte
	for _, n := range v {
		b = binary.NativeEndian.AppendUint32(b, n)
	}
	return b
}

// become gives up privileges of the calling thread, which is what counts.
func become(who string) error {
	switch who {
	case "root":
		return nil
	case "nobody":
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, someone, someone, someone); e != 0 {
			return e
		}
		return nil
	case "powerless":
		return setEffective(0)
	case "raw":
		return setEffective(1 << unix.CAP_NET_RAW)
	}
	return fmt.Errorf("cannot become %s", who)
}

func setEffective(caps uint64) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[0].Effective, d[1].Effective = uint32(caps), uint32(caps>>32)
	return unix.Capset(&h, &d[0])
}

// probeRights prints what becomes of each option on a connection.
func probeRights(args []string) error {
	runtime.LockOSThread()
	if err := become(args[1]); err != nil {
		return err
	}
	sa, family, _ := sockaddrOf(args[0])
	flags := 0
	if args[2] == "held" {
		flags = unix.SOCK_NONBLOCK
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != nil && (flags == 0 || !errors.Is(err, unix.EINPROGRESS)) {
		return fmt.Errorf("connect: %w", err)
	}
	if pair := isPair(fd); pair != (args[2] != "native") {
		return fmt.Errorf("is a socketpair: %v", pair)
	}
	for _, o := range rightsOptions {
		set := errnoOf(setRaw(fd, o.level, o.name, o.value))
		_, err := getRaw(fd, o.level, o.name, make([]byte, 256))
		fmt.Printf("%s: set %d, get %d\n", o.text, int(set), int(errnoOf(err)))
	}
	return nil
}

// rightsOf runs the probe without a launcher, and returns what it printed.
func rightsOf(t *testing.T, argv ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), probeEnv+"=rights", quietRuntime)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestRights: whatever a launcher that is root may do, a program gets for each
// option what the kernel would answer it on its own TCP socket.
func TestRights(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, which the program gives up")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := echoServer(t, "tcp6", "[::1]:0", "")
	for _, who := range []string{"root", "nobody", "powerless", "raw", "userns"} {
		argv := func(how string) []string {
			if who == "userns" {
				return []string{"unshare", "--user", "--map-root-user", exe, server, "root", how}
			}
			return []string{exe, server, who, how}
		}
		want := rightsOf(t, argv("native")...)
		if len(want) != len(rightsOptions) {
			t.Fatalf("as %s: %q", who, want)
		}
		if who != "root" && who != "raw" {
			for _, name := range rightsDenied {
				if i := slices.IndexFunc(want, func(s string) bool { return strings.HasPrefix(s, name+": ") }); !strings.Contains(want[i], "set 1,") && !strings.Contains(want[i], "set 13,") {
					t.Errorf("as %s without a launcher: %s, want EPERM or EACCES", who, want[i])
				}
			}
		}
		for _, how := range []string{"smc", "held"} {
			t.Run(who+"/"+how, func(t *testing.T) {
				stack := &fakeStack{}
				if how == "held" {
					gate := make(chan struct{})
					defer close(gate)
					stack.estGate = gate
				}
				res := launched(t, stack, "", []string{probeEnv + "=rights", quietRuntime}, argv(how)...)
				got := strings.Split(strings.TrimSpace(res.out), "\n")
				if res.status != 0 || len(got) != len(want) {
					t.Fatalf("status %d: %s", res.status, res.out)
				}
				for i, w := range want {
					if who == "root" && (strings.HasPrefix(w, "TCP_REPAIR: ") || strings.HasPrefix(w, "IPT_SO_SET_REPLACE: ")) {
						w = regexp.MustCompile("set [0-9]+").ReplaceAllString(w, "set 1") // for nobody
					}
					if got[i] != w {
						t.Errorf("%s, without a launcher %s", got[i], w)
					}
				}
				if mark := stack.mark.Load(); how == "smc" && (mark == 7) != (who == "root" || who == "raw") {
					t.Errorf("SO_MARK of the TCP socket is %d", mark)
				}
			})
		}
	}
}

// TestSignalOwner: a program cannot have the launcher signal for it whom it may
// not signal itself: who gets SIGIO is checked against who said so.
func TestSignalOwner(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, which the program gives up")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := echoServer(t, "tcp4", "127.0.0.1:0", "hello")
	for who, want := range map[string]bool{"nobody": false, "root": true} {
		victim := exec.CommandContext(t.Context(), "sleep", "60")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- victim.Wait() }()
		res := launched(t, &fakeStack{}, "", []string{probeEnv + "=signalowner", quietRuntime},
			exe, server, who, strconv.Itoa(victim.Process.Pid))
		if res.status != 0 {
			t.Fatalf("as %s: status %d: %s", who, res.status, res.out)
		}
		signaled := false
		wait := patience
		if !want {
			wait = 200 * time.Millisecond // a signal that was sent has ended it by then
		}
		select {
		case <-over:
			signaled = true
		case <-time.After(wait):
			_ = victim.Process.Kill()
			<-over
		}
		if signaled != want {
			t.Errorf("as %s: signaled %v, want %v", who, signaled, want)
		}
	}
}

// probeSignalOwner has data on a connection sent as a signal to a process.
func probeSignalOwner(args []string) error {
	runtime.LockOSThread()
	if err := become(args[1]); err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	sa, family, _ := sockaddrOf(args[0])
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	owner := [2]int32{1 /* F_OWNER_PID */, int32(pid)}
	if _, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner))); e != 0 {
		return fmt.Errorf("F_SETOWN_EX: %w", e)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, int(unix.SIGTERM)); err != nil {
		return fmt.Errorf("F_SETSIG: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_ASYNC); err != nil {
		return fmt.Errorf("O_ASYNC: %w", err)
	}
	if err := unix.Connect(fd, sa); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if !isPair(fd) {
		return errors.New("no socketpair")
	}
	if err := echo2(fd, "hello"); err != nil {
		return err
	}
	// One that was signaled is no more.
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GETOWN, 0); err != nil || got != pid && args[1] != "root" {
		return fmt.Errorf("the owner is %d (%v), not %d", got, err, pid)
	}
	return nil
}

// echo2 reads what a server greets with, then has it echo.
func echo2(fd int, greeting string) error {
	var got []byte
	for len(got) < len(greeting) {
		b := make([]byte, 64)
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("read: %d, %w", n, err)
		}
		got = append(got, b[:n]...)
	}
	if !bytes.Equal(got, []byte(greeting)) {
		return fmt.Errorf("read %q", got)
	}
	return echo(fd, "again")
}

// TestAcceptOwner: an accepted connection belongs to the program's user, as
// firewalls see it, also if it was the launcher that took it from the backlog.
func TestAcceptOwner(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, which the program gives up")
	}
	for _, args := range [][]string{{"root"}, {"nobody"}, {"root", "late"}, {"nobody", "late"}} {
		who := args[0]
		stack := &fakeStack{noPeer: true}
		p := startProbe(t, stack, "acceptowner", args...)
		c, err := net.Dial("tcp4", p.line(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		res := p.wait(t)
		if want := map[string]string{"root": "0 0", "nobody": "65534 0"}[who]; strings.TrimSpace(res.out) != want {
			t.Errorf("as %s the connection belongs to %q, want %q", who, res.out, want)
		}
		if n := stack.accepts.Load(); n != 1 {
			t.Errorf("the launcher took %d connections", n)
		}
	}
}

// probeAcceptOwner prints the user and the group of an accepted connection.
func probeAcceptOwner(args []string) error {
	runtime.LockOSThread()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(l, 5); err != nil {
		return err
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	if err := become(args[0]); err != nil {
		return err
	}
	fmt.Println(toAddrPort(name))
	if len(args) > 1 {
		time.Sleep(20 * lateDelay)
	}
	fd, _, err := acceptAgain(l, 0)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	fmt.Println(st.Uid, st.Gid)
	return nil
}

// TestOwnerMake: what a thread makes for another user is that user's, and the
// process is what it was.
func TestOwnerMake(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for range 20 {
		for _, o := range []owner{{someone, someone - 1}, {0, someone}, {0, 0}} {
			fd := -1
			if err := o.make(func() (err error) {
				fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			err := unix.Fstat(fd, &st)
			_ = unix.Close(fd)
			if err != nil || (owner{int(st.Uid), int(st.Gid)}) != o {
				t.Errorf("user %d, group %d (%v), want %+v", st.Uid, st.Gid, err, o)
			}
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if o, err := ownerOf(tid); err == nil && o != (owner{}) {
			t.Errorf("thread %d acts as %+v", tid, o)
		}
	}
	if d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || d != 1 {
		t.Errorf("dumpable: %d, %v", d, err)
	}
}

// TestLandlock: a program that forbids itself to connect cannot do so by way of
// the service, which is under no such rule.
func TestLandlock(t *testing.T) {
	testkind.System(t)
	if v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); e != 0 || v < 4 {
		t.Skip("needs Landlock with network rules (Linux 6.7)")
	}
	server := echoServer(t, "tcp4", "127.0.0.1:0", "")
	stack := &fakeStack{}
	res := probe(t, stack, "landlock", server)
	if n := stack.connects.Load(); n != 1 || res.stats.TCP[ReasonLandlock] != 1 {
		t.Errorf("the service was asked for %d connections; %+v", n, res.stats)
	}
}

func probeLandlock(args []string) error {
	runtime.LockOSThread()
	sa, family, _ := sockaddrOf(args[0])
	connect := func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, sa); err != nil {
			return err
		}
		return echo(fd, "hello")
	}
	ruleset := func(attr unix.LandlockRulesetAttr) (fd uintptr, err error) {
		fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 16, 0)
		if e != 0 {
			return 0, fmt.Errorf("landlock_create_ruleset: %w", e)
		}
		return fd, nil
	}
	if _, err := ruleset(unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SOCK}); err != nil {
		return err
	}
	if err := connect(); err != nil { // rules for files alone change nothing
		return fmt.Errorf("without a rule: %w", err)
	}
	rules, err := ruleset(unix.LandlockRulesetAttr{Handled_access_net: unix.LANDLOCK_ACCESS_NET_CONNECT_TCP})
	if err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); e != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", e)
	}
	if err := connect(); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("connect under a rule against it: %v", err)
	}
	return nil
}
