// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/kernelsmc"
	"smcr/internal/printable"
	"smcr/internal/program"
	"smcr/internal/waiter"
)

// overKernel makes this process the program.
func (s *starter) overKernel() error {
	if os.Getpid() == 1 && s.waits() {
		// Process 1 of a container becomes the parent of the supervisor, for which a program would wait that waits for all its
		// children.
		s.wait()
	}
	return s.notBegun(kernelsmc.Become(s.path, s.o.Argv))
}

// inKernel is the work of the processes that serve a program over the kernel's SMC.
func (s *starter) inKernel(p *kernelsmc.Process) error {
	if !p.Supervises {
		return s.notBegun(p.Become(s.path, s.o.Argv))
	}
	waiter.Endure()
	v, err := kernelsmc.Supervise(p.Sock, s.o.Kernel, s.log)
	if v == nil {
		return err
	}
	return v.Serve()
}

// notBegun returns an error. Without a waiter the program runs as well, and in mode auto also without the supervisor.
func (s *starter) notBegun(err error) error {
	if s.runner != nil && errors.Is(err, waiter.ErrNotBegun) {
		return s.runner.Alone(err)
	}
	if s.o.Mode == ModeAuto && errors.Is(err, kernelsmc.ErrNotBegun) {
		plainTCP(s.o, err)
		return s.native()
	}
	return startError(err)
}

// superviseKernel runs the program as a child of this process, which answers its calls, and prints at its end what became of its
// sockets.
func (s *starter) superviseKernel(c *carrier) error {
	before, err := countKernel(s.ctx, c.control)
	if err != nil && s.o.Verbose {
		s.log.Warn("the kernel does not count connections", "err", err)
	}
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return s.notBegun(fmt.Errorf("%w: %w", waiter.ErrNotBegun, os.NewSyscallError("socketpair", err)))
	}
	err = s.runner.Start(program.Self, kernelsmc.Arguments(socks[1]), socks[1])
	_ = unix.Close(socks[1])
	if err != nil {
		_ = unix.Close(socks[0])
		return s.notBegun(err)
	}
	v, err := kernelsmc.Supervise(socks[0], s.o.Kernel, s.log)
	_ = unix.Close(socks[0])
	if v == nil { // the program runs without, and its process has said why
		s.runner.Wait()
		return errors.Join(err, s.runner.Ended())
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		err = v.Serve()
	}()
	s.runner.Wait()
	if s.o.Verbose {
		s.reportKernel(c, v, before, served)
	}
	ended := s.runner.Ended()
	<-served // other processes of the program may go on
	return errors.Join(err, ended)
}

// reportKernel prints what became of the sockets of a program that has ended.
func (s *starter) reportKernel(c *carrier, v *kernelsmc.Supervisor, before kernelCounters, served <-chan struct{}) {
	goesOn := false
	select {
	case <-served:
	case <-time.After(reportPatience):
		goesOn = true
	}
	after, err := countKernel(s.ctx, c.control)
	if err != nil && before.valid {
		s.log.Warn("the kernel no longer counts connections", "err", err)
	}
	s.o.print(func(w io.Writer) {
		if goesOn {
			printable.Fprintf(w, "%s\n", untilNow)
		}
		kernelSummary(w, v.Stats(), before, after)
	})
}
