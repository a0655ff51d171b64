// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"smcr/internal/place"
	"smcr/nl"
	"smcr/quota"
	"smcr/rdmaverbs/softroce"
	"smcr/userstack"
	"smcr/userstack/engine"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
)

// ErrRunning means that the network namespace already has a stack.
var ErrRunning = errors.New("a stack is already running in this network namespace: see 'smcr info'")

// Config configures a Service.
type Config struct {
	Stack userstack.Config
	// Engines carry the programs' bytes. Stack must have the same engines, and the
	// devices of Stack should use them as pollers. Run closes them at its end. Without
	// engines, goroutines carry the bytes.
	Engines []*engine.Loop
	// IdleTimeout ends Run after this time without an attached cgroup or connection.
	// Zero means never.
	IdleTimeout time.Duration
	// UserFDs is the maximum number of descriptors of this process for each user
	// except root, and UserRuns that of programs under 'smcr run'. Zero means a share of
	// RLIMIT_NOFILE (see package quota), and the default of package attach.
	UserFDs, UserRuns int
	// NoLocal has programs of two network namespaces of this machine use RoCE. Otherwise
	// their connections are TCP.
	NoLocal bool
	// Cgroup is the folder of a cgroup whose programs use SMC from the start on, or empty.
	Cgroup string
	// Authorize, if set, may refuse a program under 'smcr run' with an error.
	Authorize func(Caller) error
	// Predecessor, if set, is the stack from which this service takes over. New owns it.
	// The caller must call Freeze, and then Assume, before Run.
	Predecessor *Predecessor
	// RoCE is the provider of the devices in Stack whose sockets another process takes
	// over, or nil.
	RoCE *softroce.Provider
	// DrainTimeout ends Run this time after another process has taken over, even if
	// there are connections. Zero means no limit.
	DrainTimeout time.Duration
	// Release is the release of smcr, for the log of another process.
	Release string
	// Quiet, if set, is called some time after many connections have begun or ended.
	// A process that does nothing else can return the memory of its heap then:
	// debug.FreeOSMemory.
	Quiet func()
	// Log receives messages for operators. Nil discards them.
	Log *slog.Logger
}

// A Caller is a process that asks to run programs over the stack.
type Caller struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// Service is the stack of a network namespace with its sockets.
type Service struct {
	cfg    Config
	log    *slog.Logger
	stack  *userstack.Stack
	in     inside.Stack[*userstack.Conn] // what stack does for the programs of others
	answer nl.Control                    // answers commands
	claim  *place.Claim                  // of the sockets below
	ctl    *net.UnixListener
	quota  *quota.Budget
	netns  uint64 // the cookie of the network namespace

	machine    machine
	boundary   *boundary // nil if the process may not have one
	lacks      error     // why not
	succession succession
	history    history

	ending context.Context // ends the relays
	end    context.CancelFunc

	mu        sync.Mutex
	idleSince time.Time
	relays    sync.WaitGroup // none is added after ending has ended
}

// New starts the stack and opens the sockets. When it returns, commands can find the
// service, and it takes connections. If the namespace already has a stack, the error
// matches ErrRunning.
func New(cfg Config) (_ *Service, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = quota.LimitLog(cfg.Log)
	if cfg.Stack.Log == nil {
		cfg.Stack.Log = cfg.Log
	}
	cfg.Stack.Engines, cfg.Stack.NoOption = cfg.Engines, true // the boundary announces SMC
	s := &Service{cfg: cfg, log: cfg.Log, idleSince: time.Now(), quota: quota.New(quota.Limits{User: cfg.UserFDs})}
	s.ending, s.end = context.WithCancel(context.Background())
	s.succession.s, s.succession.over, s.succession.ending = s, make(chan struct{}), make(chan *net.UnixListener, 1)
	defer func() {
		if err != nil {
			s.end()
			err = errors.Join(err, s.leave())
		}
	}()
	if s.netns, err = place.Cookie(); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	// This comes first, because it shows whether there is already a stack.
	if p := cfg.Predecessor; p != nil {
		s.claim, p.claim = p.claim, nil
		defer func() {
			if err != nil {
				err = errors.Join(err, p.Close())
			}
		}()
	} else if s.claim, err = place.Take(); errors.Is(err, place.ErrTaken) {
		return nil, ErrRunning
	} else if err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	if dead := s.claim.Dead(); len(dead) > 0 {
		s.log.Warn("the stack before this one was killed and has not ended, because one of its system calls does not: "+
			"it still has its sockets, such as UDP port 4791, without which there is no RoCE version 2", "processes", dead)
	}
	if err := s.takePart(); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	if s.succession.listener, err = s.claim.Listen(place.Takeover); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	if s.ctl, err = s.claim.Listen(place.Commands); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	if s.stack, err = userstack.New(cfg.Stack); err != nil {
		return nil, err
	}
	s.in = inside.StackOf[*userstack.Conn](s.stack)
	s.in.OnQuiet(cfg.Quiet)
	s.machine.log = s.log
	if !cfg.NoLocal {
		if err = s.machine.open(s.claim, s.locator()); err != nil {
			return nil, errors.Join(err, s.stack.Close())
		}
	}
	s.succession.control = s.stack.Control()
	if err = s.openBoundary(); err != nil {
		return nil, errors.Join(err, s.stack.Close())
	}
	s.SetControl(s.Control())
	return s, nil
}

// locator returns what knows the addresses of the network namespace, or nil.
func (s *Service) locator() network.Locator {
	l, _ := s.in.Network().(network.Locator)
	return l
}

// takePart takes numbers of queue pairs that no other process of the place has.
func (s *Service) takePart() error {
	n, err := s.claim.MakePart(context.Background(), func(pid int) {
		s.log.Warn("too many stacks that have handed over still have connections: the oldest one ends, which resets its connections",
			"pid", pid, "stacks", place.Parts-1)
	})
	if err != nil || s.cfg.RoCE == nil {
		return err
	}
	numbers, err := softroce.QPNPart(n)
	if err == nil {
		s.cfg.RoCE.UseQPNs(numbers)
	}
	return err
}

// leave releases the claim on the directory of the sockets.
func (s *Service) leave() error {
	if s.claim == nil {
		return nil
	}
	return s.claim.Close()
}

// Dir returns the directory of the sockets.
func (s *Service) Dir() string { return s.claim.Dir() }

// Dead returns the processes of the stack that had the place before, and that the kernel has not
// ended: see [place.Claim.Dead].
func (s *Service) Dead() []int { return s.claim.Dead() }

// Control returns the Control of the stack, with the statistics of the stacks from which this
// one has taken over. It is an [nl.Attacher].
func (s *Service) Control() nl.Control { return continued{s.stack.Control(), &s.history, s.boundary} }

// SetControl makes ctl answer commands instead of [Service.Control], which it uses. It must be
// called before Run.
func (s *Service) SetControl(ctl nl.Control) { s.answer = ctl }

// idle returns the time since the last program or connection ended.
func (s *Service) idle(now time.Time) time.Duration {
	busy := s.busy()
	s.mu.Lock()
	defer s.mu.Unlock()
	if busy {
		s.idleSince = now
		return 0
	}
	return now.Sub(s.idleSince)
}

// busy reports whether there is a program that may use the stack, or a connection.
func (s *Service) busy() bool { return s.in.Busy() || s.boundary.busy() }

// connections returns how many connections over SMC-R there are.
func (s *Service) connections() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	all, err := s.succession.control.Connections(ctx)
	if err != nil {
		return -1
	}
	return nl.CountCarried(all)
}

// enterRelay counts a relay that endRelays waits for, until leave.
func (s *Service) enterRelay() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending.Err() != nil {
		return func() {} // the relay ends at once
	}
	s.relays.Add(1)
	return s.relays.Done
}

// endRelays resets the remaining connections, and waits until they have ended.
func (s *Service) endRelays() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.relays.Wait()
}

// idleTick returns the interval of checks whether the service has been idle for the
// timeout. 0 means no checks: a service without a timeout does not wake up for this.
func idleTick(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return 0
	}
	return max(10*time.Millisecond, min(time.Second, timeout/4))
}

// Run serves until ctx ends or the idle timeout passes. It then ends the stack and
// resets the remaining connections.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errc := make(chan error, 1)
	g := s.in.Guard()
	ns := nl.NewServer(s.answer, nl.ServerConfig{
		Logger: s.log, Guard: g, Quota: s.quota,
		Receive: bounded.Receive, Close: bounded.CloseQueue, Refuse: bounded.RefuseQueue,
	})
	wg.Go(func() { // after a panic, the service ends in order
		var err error
		if fell := g.Do("the accept of commands", func() { err = ns.Serve(s.ctl) }); fell != nil {
			err = fell
		}
		errc <- err
	})
	wg.Go(g.Func("the watch on the addresses", func() { s.machine.follow(ctx, s.locator()) }))
	wg.Go(g.Func("the accept of later stacks", func() { s.succession.serve(ctx) }))
	var err error
	var tick <-chan time.Time // nil without an idle timeout
	if d := idleTick(s.cfg.IdleTimeout); d > 0 {
		t := time.NewTicker(d)
		defer t.Stop()
		tick = t.C
	}
	over := s.succession.over
	var drained <-chan time.Time
loop:
	for {
		select {
		case <-ctx.Done():
			if s.succession.handedOver() {
				s.log.Warn("told to end before the last connection: the remaining connections are reset", "connections", s.connections())
			}
			break loop
		case <-over:
			over = nil
			t := time.NewTicker(drainTick)
			defer t.Stop()
			tick = t.C
			if s.cfg.DrainTimeout > 0 {
				drained = time.After(s.cfg.DrainTimeout)
			}
			if l := <-s.succession.ending; l != nil {
				wg.Go(g.Func("the accept of commands after the handover", func() { _ = ns.Serve(l) }))
			}
		case <-drained:
			s.log.Warn("the drain timeout is over: the remaining connections are reset", "connections", s.connections())
			break loop
		case err = <-errc:
			break loop
		case now := <-tick:
			switch {
			case over == nil && !s.busy():
				s.log.Info("all connections have ended, ending")
				break loop
			case over != nil && s.idle(now) >= s.cfg.IdleTimeout:
				s.log.Info("idle, ending")
				break loop
			}
		}
	}
	if s.succession.handedOver() {
		if rerr := s.succession.reportEnd(); rerr != nil {
			s.log.Warn("the last statistics of this stack are lost", "err", rerr)
		}
	}
	// Commands must not find a service that is about to end.
	err = errors.Join(err, s.leave())
	s.boundary.settle()
	s.endRelays()
	cancel()
	err = errors.Join(err, ns.Close())
	wg.Wait()
	if p := s.cfg.Predecessor; p != nil {
		_ = p.Close() // if it is still open, the takeover has failed
	}
	err = errors.Join(err, s.boundary.close(), s.stack.Close())
	for _, l := range s.cfg.Engines {
		err = errors.Join(err, l.Close())
	}
	return err
}
