// SPDX-License-Identifier: Apache-2.0

package lastclose

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotPermitted means that this process may not load or attach the eBPF programs. It
	// matches os.ErrPermission.
	ErrNotPermitted = fmt.Errorf("eBPF programs at functions of the kernel (fexit) need CAP_BPF and CAP_PERFMON in the initial user namespace: %w", os.ErrPermission)
	// ErrUnsupportedKernel means that the kernel has no BTF, or not what the programs use. It
	// matches errors.ErrUnsupported.
	ErrUnsupportedKernel = fmt.Errorf("the kernel cannot report the last close of a socket (eBPF fexit with BTF, Linux 5.13): %w", errors.ErrUnsupported)
	// ErrFull means that MaxFiles sockets are watched.
	ErrFull = errors.New("lastclose: too many sockets are watched")
	// ErrTaken means that a socket with the same inode number is watched.
	ErrTaken = errors.New("lastclose: a socket with the same inode number is watched")
)

// MaxFiles is how many sockets a Watch has at most.
const MaxFiles = 1 << 14

// A report takes reportSize bytes in the ring buffer. Its capacity is a power of two, and
// a byte of it is never used.
const (
	reportSize = recordHeader + 16
	ringSize   = 2 * MaxFiles * 16
)

var _ [ringSize - MaxFiles*reportSize - 1]struct{}

// Watch watches sockets. It is safe for concurrent use.
type Watch struct {
	files, ring *ebpf.Map
	programs    []*ebpf.Program
	reports     *ring

	mu    sync.Mutex
	links []link.Link
	n     int
}

// Load loads the programs. It attaches nothing yet. The error matches ErrNotPermitted or
// ErrUnsupportedKernel if that is the cause.
func Load() (_ *Watch, err error) {
	p, err := self()
	if err != nil {
		return nil, err
	}
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, classify("BTF", err)
	}
	l, err := kernelLayout(spec)
	if err != nil {
		return nil, classify("BTF", err)
	}
	w := &Watch{}
	defer func() {
		if err != nil {
			_ = w.Close()
		}
	}()
	if w.files, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "smcr_held", Type: ebpf.Hash, KeySize: 8, ValueSize: entrySize, MaxEntries: MaxFiles,
	}); err != nil {
		return nil, classify("a map", err)
	}
	if w.ring, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "smcr_closed", Type: ebpf.RingBuf, MaxEntries: ringSize,
	}); err != nil {
		return nil, classify("a ring buffer", err)
	}
	for _, name := range hooks {
		if spec.TypeByName(name, new(*btf.Func)) != nil {
			continue
		}
		s := &ebpf.ProgramSpec{
			Name: "smcr_lastclose", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFExit, AttachTo: name,
			License: license, Instructions: program(l, p),
		}
		if err := errors.Join(s.Instructions.AssociateMap(mapFiles, w.files), s.Instructions.AssociateMap(mapReports, w.ring)); err != nil {
			return nil, fmt.Errorf("lastclose: %w", err)
		}
		prog, err := ebpf.NewProgram(s)
		if err != nil {
			return nil, classify(name, err)
		}
		w.programs = append(w.programs, prog)
	}
	if len(w.programs) == 0 {
		return nil, fmt.Errorf("%w: no function gives up references", ErrUnsupportedKernel)
	}
	if w.reports, err = openRing(w.ring.FD(), ringSize); err != nil {
		return nil, err
	}
	return w, nil
}

// self describes this process for the programs.
func self() (process, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return process{}, fmt.Errorf("lastclose: the PID namespace: %w", err)
	}
	// The kernel compares with its own form of a device number.
	dev := uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev))
	return process{id: uint32(os.Getpid()), dev: dev, namespace: st.Ino}, nil
}

func classify(step string, err error) error {
	_, refused := errors.AsType[*ebpf.VerifierError](err)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES) && !refused:
		return fmt.Errorf("%w: %s: %w", ErrNotPermitted, step, err)
	case refused, errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %s: %w", ErrUnsupportedKernel, step, err)
	}
	return fmt.Errorf("lastclose: %s: %w", step, err)
}

// attach attaches the programs if they are not. The caller holds w.mu.
func (w *Watch) attach() error {
	if len(w.links) > 0 {
		return nil
	}
	for _, p := range w.programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: p, AttachType: ebpf.AttachTraceFExit})
		if err != nil {
			w.detach()
			return classify("attach", err)
		}
		w.links = append(w.links, l)
	}
	return nil
}

// detach detaches the programs. The caller holds w.mu.
func (w *Watch) detach() {
	for _, l := range w.links {
		_ = l.Close()
	}
	w.links = nil
}

// Number returns the inode number of a socket, with which it is reported.
func Number(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

// Add adds a socket, which is not reported before Arm. The errors are ErrFull, ErrTaken, and
// those of Load if the programs cannot be attached.
func (w *Watch) Add(number uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n >= MaxFiles {
		return ErrFull
	}
	if err := w.attach(); err != nil {
		return err
	}
	e := encodeEntry()
	e[entryReported] = 1 // no report yet
	switch err := w.files.Update(number, e, ebpf.UpdateNoExist); {
	case errors.Is(err, ebpf.ErrKeyExist):
		return ErrTaken
	case errors.Is(err, unix.E2BIG):
		return ErrFull
	case err != nil:
		return fmt.Errorf("lastclose: %w", err)
	}
	w.n++
	return nil
}

// Arm lets the socket of fd be reported: at once if this process has the only reference
// already, otherwise as soon as it has. No other descriptor of the socket may be open in
// this process, and no other call may use fd meanwhile.
func (w *Watch) Arm(number uint64, fd int) error {
	if err := w.files.Update(number, encodeEntry(), ebpf.UpdateExist); err != nil {
		return fmt.Errorf("lastclose: %w", err)
	}
	// The close of another descriptor shows the program the address of the file, and
	// how many references there are now.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	return unix.Close(dup)
}

// Remove ends the watch of a socket. A report may still be on its way.
func (w *Watch) Remove(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.files.Delete(number) == nil {
		w.n--
	}
}

// Relax detaches the programs if no socket is watched, so that other processes do not pay
// for them. Add attaches them again.
func (w *Watch) Relax() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n == 0 {
		w.detach()
	}
}

// FD is readable, for epoll, when there are reports. It must not be closed.
func (w *Watch) FD() int { return w.ring.FD() }

// Read calls f with each report: the inode number of a socket, and whether it had data that
// nobody had read when it was closed. Read must not be called concurrently.
func (w *Watch) Read(f func(number uint64, unread bool)) { w.reports.read(f) }

// Close ends the watch of all sockets.
func (w *Watch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detach()
	var errs []error
	for _, p := range w.programs {
		errs = append(errs, p.Close())
	}
	w.programs = nil
	if w.reports != nil {
		errs = append(errs, w.reports.close())
		w.reports = nil
	}
	return errors.Join(append(errs, w.files.Close(), w.ring.Close())...)
}
