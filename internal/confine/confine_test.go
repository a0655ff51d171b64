// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// childEnv names the part of a test that runs in a process of its own.
const childEnv = "SMCR_CONFINE_TEST"

// children are the parts that give up rights. They print what does not hold.
var children = map[string]func(){"caps": childCaps, "filter": childFilter, "trap": childTrap}

func TestMain(m *testing.M) {
	if f := children[os.Getenv(childEnv)]; f != nil {
		f()
		return
	}
	os.Exit(m.Run())
}

// child runs a part in a process of its own and returns what it prints.
func child(t *testing.T, part string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childEnv+"="+part)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// threads keeps several threads in the process, which begin before the change, and returns
// a function that runs f on each of them.
func threads(n int) func(f func() string) {
	tasks := make([]chan func() string, n)
	said := make(chan string)
	for i := range tasks {
		tasks[i] = make(chan func() string)
		go func() {
			runtime.LockOSThread()
			for f := range tasks[i] {
				said <- f()
			}
		}()
	}
	run := func(f func() string) {
		for _, task := range tasks {
			task <- f
			if text := <-said; text != "" {
				fmt.Println(text)
			}
		}
	}
	run(func() string { return "" }) // they are there
	return run
}

// TestKeepOnly gives up capabilities in a process with several threads.
func TestKeepOnly(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	out, err := child(t, "caps")
	if strings.Contains(out, ErrThreads.Error()) {
		t.Skip(ErrThreads)
	}
	if err != nil || out != "" {
		t.Errorf("%v:\n%s", err, out)
	}
}

func childCaps() {
	each := threads(4)
	keep := Of(unix.CAP_NET_RAW, unix.CAP_NET_ADMIN)
	before, err := Effective()
	if err != nil || !before.Has(unix.CAP_NET_RAW) || !before.Has(unix.CAP_CHOWN) {
		fmt.Println("before:", before, err)
	}
	if err := KeepOnly(keep); err != nil {
		fmt.Println(err)
		return
	}
	check := func() string {
		b, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			return err.Error()
		}
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t0000000000003000", "CapEff:\t0000000000003000",
			"CapBnd:\t0000000000003000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1",
		} {
			if !strings.Contains(string(b), "\n"+want+"\n") {
				return "no " + want + " in\n" + string(b)
			}
		}
		if err := unix.Chown("/", 1, 1); !errors.Is(err, unix.EPERM) {
			return fmt.Sprint("chown: ", err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Sprint("packet socket: ", err)
		}
		unix.Close(fd)
		return ""
	}
	each(check)
	threads(4)(check) // threads that begin later
	if err := KeepOnly(Of(unix.CAP_NET_RAW, unix.CAP_CHOWN)); err != nil {
		fmt.Println("again:", err)
	}
	if now, err := Effective(); err != nil || now != Of(unix.CAP_NET_RAW) {
		fmt.Println("what is lost came back:", now, err)
	}
}

// testCalls is what the Go runtime and the parts of the test need, and conditions of each
// kind.
func testCalls() []Call {
	calls := []Call{
		{"clone", unix.SYS_CLONE, &Cond{Arg: cloneFlags(), With: unix.CLONE_THREAD}},
		{"mmap", unix.SYS_MMAP, &Cond{Arg: 2, Without: unix.PROT_EXEC}},
		{"mprotect", unix.SYS_MPROTECT, &Cond{Arg: 2, Without: unix.PROT_EXEC}},
		{"socket", unix.SYS_SOCKET, &Cond{Arg: 0, OneOf: []uint32{unix.AF_UNIX, unix.AF_INET}}},
		{"tgkill", unix.SYS_TGKILL, &Cond{Arg: 0, OneOf: []uint32{uint32(os.Getpid())}}},
		{"absent", -1, nil},
	}
	for name, nr := range map[string]int{
		"read": unix.SYS_READ, "write": unix.SYS_WRITE, "close": unix.SYS_CLOSE, "futex": unix.SYS_FUTEX, "munmap": unix.SYS_MUNMAP,
		"madvise": unix.SYS_MADVISE, "rt_sigaction": unix.SYS_RT_SIGACTION, "rt_sigprocmask": unix.SYS_RT_SIGPROCMASK,
		"rt_sigreturn": unix.SYS_RT_SIGRETURN, "sigaltstack": unix.SYS_SIGALTSTACK, "nanosleep": unix.SYS_NANOSLEEP,
		"sched_yield": unix.SYS_SCHED_YIELD, "getpid": unix.SYS_GETPID, "gettid": unix.SYS_GETTID, "exit": unix.SYS_EXIT,
		"exit_group": unix.SYS_EXIT_GROUP, "prctl": unix.SYS_PRCTL, "openat": unix.SYS_OPENAT, "rseq": unix.SYS_RSEQ,
		"set_robust_list": unix.SYS_SET_ROBUST_LIST, "epoll_pwait": unix.SYS_EPOLL_PWAIT, "epoll_create1": unix.SYS_EPOLL_CREATE1,
		"epoll_ctl": unix.SYS_EPOLL_CTL, "eventfd2": unix.SYS_EVENTFD2, "fcntl": unix.SYS_FCNTL, "sched_getaffinity": unix.SYS_SCHED_GETAFFINITY,
	} {
		calls = append(calls, Call{name, nr, nil})
	}
	return calls
}

// cloneFlags is the argument of clone that has the flags.
func cloneFlags() int {
	if runtime.GOARCH == "s390x" {
		return 1
	}
	return 0
}

// TestFilter installs a filter in a process with several threads.
func TestFilter(t *testing.T) {
	testkind.System(t)
	out, err := child(t, "filter")
	if err != nil || out != "" {
		t.Errorf("%v:\n%s", err, out)
	}
}

func childFilter() {
	each := threads(4)
	if err := Filter(testCalls(), Refuse); err != nil {
		fmt.Println(err)
		return
	}
	check := func() string {
		for name, tt := range map[string]struct {
			errno unix.Errno
			nr    uintptr
			args  [4]uintptr
		}{
			"allowed":               {0, unix.SYS_GETPID, [4]uintptr{}},
			"an allowed family":     {unix.EINVAL, unix.SYS_SOCKET, [4]uintptr{unix.AF_UNIX, 99}},
			"another family":        {unix.EPERM, unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, unix.SOCK_RAW}},
			"process":               {unix.EPERM, unix.SYS_CLONE, [4]uintptr{uintptr(unix.SIGCHLD), uintptr(unix.SIGCHLD)}},
			"clone3":                {unix.ENOSYS, unix.SYS_CLONE3, [4]uintptr{}},
			"execve":                {unix.EPERM, unix.SYS_EXECVE, [4]uintptr{}},
			"ptrace":                {unix.EPERM, unix.SYS_PTRACE, [4]uintptr{}},
			"memory to execute":     {unix.EPERM, unix.SYS_MMAP, [4]uintptr{0, 4096, unix.PROT_READ | unix.PROT_EXEC, unix.MAP_PRIVATE | unix.MAP_ANON}},
			"signal to another":     {unix.EPERM, unix.SYS_TGKILL, [4]uintptr{1, 1, 0}},
			"signal to this one":    {0, unix.SYS_TGKILL, [4]uintptr{uintptr(os.Getpid()), uintptr(unix.Gettid()), 0}},
			"a number of no call":   {unix.EPERM, 100000, [4]uintptr{}},
			"the number of x32":     {unix.EPERM, 0x40000000 + unix.SYS_GETPID, [4]uintptr{}},
			"beyond 32 bits, lower": {unix.EINVAL, unix.SYS_SOCKET, [4]uintptr{unix.AF_UNIX, 99}},
		} {
			if _, _, errno := unix.Syscall6(tt.nr, tt.args[0], tt.args[1], tt.args[2], tt.args[3], 0, 0); errno != tt.errno {
				return fmt.Sprintf("%s: %v, want %v", name, errno, tt.errno)
			}
		}
		return ""
	}
	each(check)
	threads(8)(check)
	// The runtime still works: memory, garbage collection, signals of its own.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				_ = make([]byte, 1<<20)
			}
			runtime.GC()
		})
	}
	wg.Wait()
	if err := exec.Command("/bin/true").Run(); !errors.Is(err, unix.EPERM) {
		fmt.Println("a program was executed:", err)
	}
}

// TestTrap checks that the process ends at a call that is not allowed, and says where.
func TestTrap(t *testing.T) {
	testkind.System(t)
	out, err := child(t, "trap")
	if err == nil || !strings.Contains(out, "SIGSYS") || !strings.Contains(out, "childTrap") || strings.Contains(out, "not reached") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func childTrap() {
	if err := Filter(testCalls(), Trap); err != nil {
		fmt.Println(err)
		return
	}
	_, _ = unix.Getsid(0)
	fmt.Println("not reached")
}

// TestProgram compares the filter with the list, for each number.
func TestProgram(t *testing.T) {
	var calls []Call
	for _, nr := range []int{0, 1, 2, 3, 10, 12, 100, 101, 102, 103, 300, 301, 450, 511} {
		calls = append(calls, Call{fmt.Sprint(nr), nr, nil})
	}
	for _, nr := range []int{11, 200, 302} {
		calls = append(calls, Call{fmt.Sprint(nr), nr, &Cond{Arg: nr % 6, OneOf: []uint32{7, 9, 0xffffffff}}})
	}
	calls = append(calls, Call{"with", 20, &Cond{Arg: 1, With: 0x30}}, Call{"without", 21, &Cond{Arg: 2, Without: 0x0c}})
	prog, err := program(calls, Refuse)
	if err != nil {
		t.Fatal(err)
	}
	vm := newVM(t, prog)
	for nr := range 1000 {
		for _, arg := range []uint32{0, 4, 7, 8, 9, 0x10, 0x20, 0x30, 0x33, 0xffffffff} {
			want := uint32(retErrno | uint32(unix.EPERM))
			i := slices.IndexFunc(calls, func(c Call) bool { return c.Nr == nr })
			switch {
			case nr == unix.SYS_CLONE3:
				want = retErrno | uint32(unix.ENOSYS)
			case i < 0:
			case calls[i].If == nil,
				len(calls[i].If.OneOf) > 0 && slices.Contains(calls[i].If.OneOf, arg),
				calls[i].If.With != 0 && arg&calls[i].If.With == calls[i].If.With,
				calls[i].If.Without != 0 && arg&calls[i].If.Without == 0:
				want = retAllow
			}
			if got := vm.run(t, auditArch, uint32(nr), arg); got != want {
				t.Fatalf("system call %d(%#x): %#x, want %#x", nr, arg, got, want)
			}
		}
	}
	if got := vm.run(t, auditArch+1, 0, 0); got != retKillProcess {
		t.Errorf("another architecture: %#x", got)
	}
	if len(prog) > 120 {
		t.Errorf("%d instructions", len(prog))
	}
	for name, bad := range map[string][]Call{
		"twice":  {{"a", 1, nil}, {"b", 1, nil}},
		"empty":  {{"a", 1, &Cond{}}},
		"no arg": {{"a", 1, &Cond{Arg: 6, With: 1}}},
	} {
		if _, err := program(bad, Refuse); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A vm runs a filter as the kernel does.
type vm struct{ *bpf.VM }

func newVM(t *testing.T, prog []unix.SockFilter) vm {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(prog))
	for i, f := range prog {
		raw[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	ins, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has unknown instructions")
	}
	m, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	return vm{m}
}

// run returns the result for a system call with the same value in all arguments. The machine
// of the library reads words in the order of the network.
func (m vm) run(t *testing.T, arch, nr, arg uint32) uint32 {
	t.Helper()
	data := make([]byte, 64)
	put := func(off int, v uint32) {
		for i := range 4 {
			data[off+i] = byte(v >> (24 - 8*i))
		}
	}
	put(dataNr, nr)
	put(dataArch, arch)
	for i := range 6 {
		put(dataArgs+8*i+argLow, arg)
	}
	n, err := m.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// BenchmarkFilter measures a system call in a process with a filter, beside one without.
func BenchmarkFilter(b *testing.B) {
	if _, err := os.Stat(filepath.Join("/proc", "self")); err != nil {
		b.Skip(err)
	}
	call := func(b *testing.B) {
		for b.Loop() {
			_, _, _ = unix.Syscall(unix.SYS_GETPPID, 0, 0, 0)
		}
	}
	b.Run("without", call)
	if err := Filter(append(benchCalls(), Call{"getppid", unix.SYS_GETPPID, nil}), Refuse); err != nil {
		b.Skip(err)
	}
	b.Run("with", call)
}

// benchCalls allows nearly everything.
func benchCalls() (calls []Call) {
	for nr := range 463 {
		if nr != unix.SYS_GETPPID && nr%50 != 49 {
			calls = append(calls, Call{fmt.Sprint(nr), nr, nil})
		}
	}
	return calls
}
