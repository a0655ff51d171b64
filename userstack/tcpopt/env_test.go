// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/netnstest"
)

// onThread runs f on a thread that ends afterwards, so that f may drop privileges and
// change the mount namespace.
func onThread(t *testing.T, f func() error) {
	t.Helper()
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		errc <- f()
	}()
	if err := <-errc; err != nil {
		t.Error(err)
	}
}

// keepCapabilities drops all other effective capabilities of the thread.
func keepCapabilities(keep ...uint) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[0].Effective, data[1].Effective = 0, 0
	for _, c := range keep {
		data[c/32].Effective |= 1 << (c % 32)
	}
	return unix.Capset(&hdr, &data[0])
}

// withoutCgroups gives the thread a mount namespace without cgroup v2.
func withoutCgroups() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m.point, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return nil
}

func cgroupMounts() ([]mount, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMountInfo(f)
}

func TestPrivileges(t *testing.T) {
	netnstest.Require(t)
	if mounts, err := cgroupMounts(); err != nil || len(mounts) == 0 {
		t.Skipf("needs a mounted cgroup v2 (%v): mount -t cgroup2 none /sys/fs/cgroup/unified", err)
	}
	tests := []struct {
		name string
		caps []uint
		want []string // parts of the message; nil means no error
	}{
		{"none", nil, []string{"missing CAP_BPF and CAP_NET_ADMIN", "run as root"}},
		{"CAP_BPF", []uint{unix.CAP_BPF}, []string{"missing CAP_NET_ADMIN:"}},
		{"CAP_NET_ADMIN", []uint{unix.CAP_NET_ADMIN}, []string{"missing CAP_BPF:"}},
		{"CAP_BPF and CAP_NET_ADMIN", []uint{unix.CAP_BPF, unix.CAP_NET_ADMIN}, nil},
		{"CAP_SYS_ADMIN", []uint{unix.CAP_SYS_ADMIN}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onThread(t, func() error {
				if err := keepCapabilities(test.caps...); err != nil {
					return err
				}
				err := attachOnce()
				if test.want == nil {
					return err
				}
				wantNotPermitted(t, "Attach", err, test.want...)
				return nil
			})
		})
	}
}

// attachOnce attaches the program and detaches it again.
func attachOnce() error {
	p, err := Attach(Options{})
	if err != nil {
		return err
	}
	return p.Close()
}

func wantNotPermitted(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, ErrNotPermitted) {
		t.Errorf("%s: got %v, want ErrNotPermitted", what, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q does not say %q", what, err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: message of several lines: %q", what, err)
	}
}

// TestUserNamespace runs itself again as root of a user namespace, which seems to have
// all capabilities.
func TestUserNamespace(t *testing.T) {
	netnstest.Require(t)
	const env = "SMCR_TEST_USERNS"
	if os.Getenv(env) != "" {
		wantNotPermitted(t, "Attach", attachOnce(), "user namespace")
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestUserNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUserNamespace") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoCgroupMount attaches while cgroup v2 is not mounted, and checks that no mount is
// left.
func TestNoCgroupMount(t *testing.T) {
	b := newBed(t)
	b.must(b.prog.Close())
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	onThread(t, func() (err error) {
		if err := withoutCgroups(); err != nil {
			return err
		}
		if b.prog, err = Attach(Options{}); err != nil {
			return err
		}
		mounts, err := cgroupMounts()
		if len(mounts) != 0 {
			t.Errorf("Attach left mounts behind: %v", mounts)
		}
		return err
	})
	if t.Failed() {
		return
	}
	defer b.prog.Close()
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, false)
	b.markListening(l) // opens the cgroup again
	c := b.dial(l, true)
	b.wantPeer("client", c.client, PeerSMC)
	b.wantPeer("server", c.server, PeerSMC)
	wantAnnounced(t, b.segments(capture), "private mount", c, true, true)

	onThread(t, func() error {
		err := errors.Join(withoutCgroups(), keepCapabilities(unix.CAP_BPF, unix.CAP_NET_ADMIN))
		wantNotPermitted(t, "Attach without CAP_SYS_ADMIN", attachOnce(), "no cgroup v2 is mounted", "CAP_SYS_ADMIN")
		return err
	})
}

// TestOvermounted mounts another file system over the cgroup v2 mount.
func TestOvermounted(t *testing.T) {
	netnstest.Require(t)
	onThread(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		mounts, err := cgroupMounts()
		if err != nil {
			return err
		}
		for _, m := range mounts {
			if err := unix.Mount("none", m.point, "tmpfs", 0, ""); err != nil {
				return err
			}
		}
		return attachOnce()
	})
}

func TestCgroupPath(t *testing.T) {
	netnstest.Require(t)
	for _, path := range []string{"/nonexistent", "/proc", "/etc/passwd"} {
		p, err := Attach(Options{CgroupPath: path})
		if err == nil {
			p.Close()
			t.Errorf("%s: attached", path)
			continue
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: message %q", path, err)
		}
	}
}

func TestParseMountInfo(t *testing.T) {
	const in = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:6 - cgroup cgroup rw,name=systemd
40 22 0:27 /docker/a\040b /mnt/with\040space\134 rw - cgroup2 none rw
41 22 0:27 / /mnt/noopt rw master:1 propagate_from:2 - cgroup2 none rw
nonsense
50 22 - cgroup2 none
`
	got, err := parseMountInfo(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{
		{"/", "/sys/fs/cgroup/unified"},
		{"/docker/a b", `/mnt/with space\`},
		{"/", "/mnt/noopt"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mount{})); diff != "" {
		t.Error(diff)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "/a": "/a", `\040`: " ", `a\`: `a\`, `a\04`: `a\04`, `\999`: `\999`, `\134040`: `\040`,
	} {
		if got := unescape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestBPFError(t *testing.T) {
	for _, test := range []struct{ err, want error }{
		{unix.EPERM, ErrNotPermitted},
		{unix.EACCES, ErrNotPermitted},
		{unix.EINVAL, ErrUnsupportedKernel},
		{unix.ENOSYS, ErrUnsupportedKernel},
	} {
		err := bpfError("step", test.err)
		if !errors.Is(err, test.want) || !errors.Is(err, test.err) {
			t.Errorf("%v: got %v", test.err, err)
		}
	}
	if err := bpfError("step", unix.ENOMEM); errors.Is(err, ErrNotPermitted) || errors.Is(err, ErrUnsupportedKernel) || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("ENOMEM: got %v", err)
	}
}

// TestSeccomp refuses bpf(2) to root, like container runtimes.
func TestSeccomp(t *testing.T) {
	netnstest.Require(t)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_BPF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	onThread(t, func() error {
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			return errno
		}
		wantNotPermitted(t, "Attach", attachOnce(), "seccomp")
		return nil
	})
}

// TestExclusiveProgram attaches another program to the cgroup first, in the old way that
// allows no second one.
func TestExclusiveProgram(t *testing.T) {
	netnstest.Require(t)
	dir := privateCgroup(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SockOps, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		t.Fatal(err)
	}
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: ebpf.AttachCGroupSockOps})
	p, err := Attach(Options{CgroupPath: dir})
	if err == nil {
		p.Close()
	}
	wantNotPermitted(t, "Attach", err, "exclusively attached", dir)
}
