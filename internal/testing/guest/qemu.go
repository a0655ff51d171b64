// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"smcr/internal/testing/guest/control"

	"golang.org/x/sys/unix"
)

const emulator = "qemu-system-x86_64"

// A NIC is a guest's end of a link between two guests. The guest that is booted with it
// owns it.
type NIC struct {
	// MAC is the hardware address. It is locally administered.
	MAC  string
	wire *os.File
}

// Wire returns the two ends of a link. In each guest, the first link is eth0, the next
// eth1, and so on.
func Wire() (a, b NIC, err error) {
	x, y, err := socketPair()
	if err != nil {
		return NIC{}, NIC{}, err
	}
	mac := func() string {
		v := rand.Uint64()
		return fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(v), byte(v>>8), byte(v>>16))
	}
	return NIC{mac(), x}, NIC{mac(), y}, nil
}

// Close closes a NIC of a guest that was never booted.
func (n NIC) Close() error { return n.wire.Close() }

func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("guest: socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socketpair"), os.NewFile(uintptr(fds[1]), "socketpair"), nil
}

// machine has the configuration of QEMU.
type machine struct {
	cfg    Config
	kernel Kernel
	dir    string // has initramfs, console.log and share
	port   *os.File
}

// processor is all that QEMU emulates, without two features that make a guest slow. With
// erms, Linux copies and clears memory by "rep movsb" and "rep stosb", which QEMU emulates
// byte by byte. With la57, page tables have five levels. Without them, and with the
// parameters below, the tests of package interop take two thirds of the processor time.
const processor = "max,-erms,-la57"

// arguments returns the command line of QEMU and the files that it inherits, from
// descriptor 3 on.
func (m *machine) arguments() (args []string, files []*os.File) {
	inherit := func(f *os.File) int {
		files = append(files, f)
		return 2 + len(files)
	}
	c := m.cfg
	parameters := []string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "random.trust_cpu=on",
		// On a busy machine, timer ticks are late. The kernel must not panic then.
		"no_timer_check",
		// Do not clear memory that is about to be overwritten.
		"init_on_alloc=0", "transparent_hugepage=madvise",
		"smcr.name=" + c.Name,
	}
	if c.TrustTSC {
		parameters = append(parameters, "tsc=nowatchdog")
	}
	if c.Terminal {
		parameters = append(parameters, "smcr.term="+os.Getenv("TERM"))
	}
	args = []string{
		"-accel", "tcg,thread=multi", "-cpu", processor, "-smp", fmt.Sprint(c.CPUs), "-m", fmt.Sprint(c.Memory),
		"-name", c.Name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.kernel.image(), "-initrd", filepath.Join(m.dir, "initramfs"),
		"-append", strings.Join(parameters, " "),
		"-serial", "file:" + quote(filepath.Join(m.dir, "console.log")),
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", inherit(m.port)),
		"-device", "virtserialport,chardev=agent,nr=1,name=" + control.PortName,
	}
	share := func(tag, dir string, readOnly bool) {
		v := fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,multidevs=remap", quote(dir), tag)
		if readOnly {
			v += ",readonly=on"
		}
		args = append(args, "-virtfs", v)
	}
	share("host", "/", true)
	share("modules", m.kernel.modules(), true)
	share("share", filepath.Join(m.dir, "share"), false)
	if c.Terminal {
		args = append(args, "-chardev", "stdio,id=terminal,signal=off", "-device", "virtconsole,chardev=terminal,nr=0")
	}
	for i, n := range c.NICs {
		args = append(args,
			"-netdev", fmt.Sprintf("stream,id=wire%d,server=off,addr.type=fd,addr.str=%d", i, inherit(n.wire)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=wire%d,mac=%s,romfile=", i, n.MAC))
	}
	return args, files
}

// quote doubles commas, because a comma separates options of QEMU.
func quote(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// A process is a running QEMU.
type process struct {
	cmd    *exec.Cmd
	stderr tail
	done   chan struct{} // closed after the end; then err is valid
	err    error
}

// startProcess starts QEMU so that the kernel kills it when this process ends. More
// precisely, it is killed when the thread that started it ends (prctl(2),
// PR_SET_PDEATHSIG), so this thread is kept.
func startProcess(m *machine) (*process, error) {
	path, err := findProgram(emulator)
	if err != nil {
		return nil, unavailable("%w", err)
	}
	args, files := m.arguments()
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.stderr
	if m.cfg.Terminal {
		p.cmd.Stdin, p.cmd.Stdout = os.Stdin, os.Stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if !m.cfg.Terminal {
		p.cmd.SysProcAttr.Setpgid = true // Ctrl-C interrupts the test, which ends QEMU
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("guest: start %s: %w", emulator, err)
	}
	return p, nil
}

// kill ends QEMU at once and waits for its end. The guest has no data to save.
func (p *process) kill() {
	// QEMU may have ended already.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// A watchdog removes a directory on request or when this process ends, even if it is
// killed.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// watch starts a watchdog: a shell that waits for the end of a pipe whose other end only
// this process has.
func watch(dir string) (*watchdog, error) {
	w := &watchdog{cmd: exec.Command("/bin/sh", "-c", `read -r _; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }`, "sh", dir)}
	w.cmd.Dir = "/"
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	w.pipe = pipe
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guest: start the watchdog: %w", errors.Join(err, pipe.Close()))
	}
	return w, nil
}

// remove makes the watchdog remove the directory, and waits for that.
func (w *watchdog) remove() error {
	err := w.pipe.Close()
	return errors.Join(err, w.cmd.Wait())
}

// tail keeps the last bytes that are written to it. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 8 << 10

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if n := len(t.b) - tailSize; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
