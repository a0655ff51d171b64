// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ShareVersion is the version of the programs and of their maps. A process can adopt what
// a process with the same version shares. It changes with the layout of a map, with the
// meaning of a mark, and with the list of [Program.Share].
const ShareVersion = 4

// shared is the number of files that each Program shares. A Program with a gate shares
// two more.
const shared = 8

// Share returns the program, its maps and its attachment as files, for [Adopt] in another
// process. The caller must close the files. The program stays attached until the last
// process that has them ends or closes its Program, so no handshake misses it. Errors:
// ErrClosed, and those of a process without free descriptors.
func (p *Program) Share() (_ []*os.File, err error) {
	if err := p.acquire(); err != nil {
		return nil, err
	}
	defer p.release()
	fds := []int{p.objs.marks.FD(), p.objs.listeners.FD(), p.objs.handshakes.FD(), p.objs.silent.FD(), p.objs.announced.FD(), p.objs.answers.FD(), p.objs.sockOps.FD(), linkFD(p.link)}
	p.gateMu.Lock()
	defer p.gateMu.Unlock()
	if p.gate.link != nil {
		fds = append(fds, p.objs.gate.FD(), linkFD(p.gate.link))
	}
	var files []*os.File
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("tcpopt: share: %w", err)
		}
		files = append(files, os.NewFile(uintptr(dup), "bpf"))
	}
	return files, nil
}

// linkFD returns the descriptor of an attachment.
func linkFD(l link.Link) int {
	if f, ok := l.(interface{ FD() int }); ok {
		return f.FD()
	}
	return -1
}

// Adopt makes a Program of the files that [Program.Share] returned in another process. All
// marks that the other process has set are valid here, and the reverse. Adopt closes the
// files. Errors: ErrUnsupportedKernel, ErrNotPermitted, and os.ErrInvalid for files that
// are not those of Share.
func Adopt(files []*os.File, opts Options) (_ *Program, err error) {
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if len(files) != shared && len(files) != shared+2 {
		return nil, fmt.Errorf("tcpopt: adopt %d files: %w", len(files), os.ErrInvalid)
	}
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Program{log: log, objs: &objects{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.abandon())
		}
	}()
	for i, m := range []**ebpf.Map{&p.objs.marks, &p.objs.listeners, &p.objs.handshakes, &p.objs.silent, &p.objs.announced, &p.objs.answers} {
		if *m, err = adopt(files[i], ebpf.NewMapFromFD); err != nil {
			return nil, err
		}
	}
	if p.objs.sockOps, err = adopt(files[6], ebpf.NewProgramFromFD); err != nil {
		return nil, err
	}
	if p.link, err = adopt(files[7], link.NewFromFD); err != nil {
		return nil, err
	}
	if len(files) > shared {
		if p.objs.gate, err = adopt(files[shared], ebpf.NewProgramFromFD); err != nil {
			return nil, err
		}
		if p.gate.link, err = adopt(files[shared+1], link.NewFromFD); err != nil {
			return nil, err
		}
	}
	if p.cgroup, err = openCgroup(opts.CgroupPath); err != nil {
		return nil, err
	}
	p.objs.loadOptional()
	log.Debug("tcp option program adopted", "cgroup", p.cgroup.name)
	return p, nil
}

// adopt makes an object of a file, which stays open.
func adopt[T any](f *os.File, open func(fd int) (T, error)) (T, error) {
	var none T
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return none, fmt.Errorf("tcpopt: adopt: %w", err)
	}
	x, err := open(fd) // takes over fd, also if it fails
	if err != nil {
		return none, bpfError("adopt what another process shares", err)
	}
	return x, nil
}

// abandon releases what an Adopt that failed has opened.
func (p *Program) abandon() error {
	errs := []error{p.objs.Close()}
	for _, l := range []link.Link{p.link, p.gate.link} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
