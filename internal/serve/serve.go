// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/oplog"
	"smcr/internal/place"
	"smcr/internal/sdnotify"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/userstack"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/service"
)

// EngineOptions are the flags of smcr serve for its event loops.
type EngineOptions struct {
	// Off uses goroutines for the sockets.
	Off bool
	// Threads is the number of event loops; 0 means one for each two processors.
	Threads int
	// Spin is how long an event loop looks for more work before it sleeps.
	Spin time.Duration
}

// StartOptions are the hidden flags of smcr serve, for a process that another smcr has started.
type StartOptions struct {
	// OnDemand says that smcr run has started the process, with a log of its own.
	OnDemand bool
	// Report reports the result of the start on descriptor readyFD.
	Report bool
}

// Times are the flags of smcr serve that are times.
type Times struct {
	// IdleTimeout is the field of service.Config.
	IdleTimeout time.Duration
	// GroupIdle and StallTime are the fields of userstack.Config.
	GroupIdle, StallTime time.Duration
}

// ProcessOptions are the flags of smcr serve about what others can see and do through its
// process.
type ProcessOptions struct {
	// Metrics is the address of the metrics, as httpserver.ParseAddr returns it. Empty
	// means no metrics.
	Metrics string
	// NoFilter leaves all system calls to the stack.
	NoFilter bool
}

// Options are the flags of smcr serve.
type Options struct {
	Err        io.Writer
	NetDevs    []string
	Cgroup     CgroupOptions
	RoCE       string
	RecvBuf    int
	SendBuf    int
	MaxLinks   int
	EyeCatcher bool
	Times
	Start StartOptions
	// NoDefaultEID leaves out the enterprise ID that all user-space stacks have.
	NoDefaultEID bool
	// NoLocal is NoLocal of service.Config.
	NoLocal bool
	Engine  EngineOptions
	// UserFDs and UserRuns are the fields of service.Config.
	UserFDs, UserRuns int
	// Limits are those of the stack.
	Limits   userstack.Limits
	Takeover Takeover
	Allow    Allow
	LogLevel slog.Level
	// Config is the configuration file. Empty means the file of the host, if it
	// exists.
	Config  string
	Process ProcessOptions
}

// Run serves until a signal ends it.
func Run(ctx context.Context, o *Options) error {
	err := again(ctx, o, run)
	if err != nil && o.Start.Report {
		reportStart(err)
	}
	if err == nil && o.Start.OnDemand {
		// The stack has ended in order, so its log is not needed.
		if err := removeLog(logDir, os.Stderr); err != nil {
			return fmt.Errorf("remove the log: %w", err)
		}
	}
	return err
}

func run(ctx context.Context, o *Options) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	defer oplog.Flush(cfg.Log)
	if err := permitted(); err != nil {
		return err
	}
	if err := o.takeBack(ctx); err != nil {
		return err
	}
	manager, err := sdnotify.New()
	if err != nil {
		cfg.Log.Warn("service manager", "err", err)
	}
	lacks := &lacks{capabilities: reportMissing(cfg.Log), v2: cfg.RoCE.LacksV2}
	if err := raiseOpenFiles(); err != nil {
		cfg.Log.Warn("cannot raise the limit of open files", "err", err)
	}
	if cfg.Predecessor, err = o.approach(ctx); err != nil {
		return err
	}
	s, err := service.New(cfg)
	if err != nil {
		for _, l := range cfg.Engines {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	sweepPlaces(cfg.Log)
	control := newPersistentControl(s.Control(), logDir, s.Dir(), cfg.Log)
	control.release = o.Takeover.Release
	control.v1, control.v2 = o.RoCE != "v2", o.RoCE != "v1"
	lacks.dead, lacks.wire = s.Dead, s.Lacks()
	control.lacks = lacks
	s.SetControl(control)
	web := newWebServer(o.Process.Metrics, o.Takeover.Release, control, cfg.Log)
	defer web.end()
	next := &successor{control: control, manager: manager, web: web, log: cfg.Log}
	s.OnHandOver(next.freeze, next.commit)
	conf := &configurator{path: o.Config, control: control, eids: o.eids(), log: cfg.Log, notify: manager.Send}
	// Signals are handled before the start is reported, so that an early SIGHUP
	// does not end the stack, and an early SIGTERM ends it in order.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer conf.reloadOnHangup(ctx)()
	if err := takeOver(s, cfg.Predecessor, func() error {
		if err := conf.start(ctx); err != nil || cfg.Predecessor != nil {
			return err
		}
		return web.listen(ctx)
	}); err != nil {
		// Run with an ended context ends the stack at once.
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, s.Run(ended))
	}
	if cfg.Predecessor != nil {
		web.inherit(ctx)
	}
	confineSelf(o.Process.NoFilter, cfg.Log)
	web.serve(ctx)
	cfg.Log.Info(servingMessage, "pid", os.Getpid(), "sockets", s.Dir())
	if err := manager.Send(sdnotify.Ready, sdnotify.Status("sockets in "+s.Dir())); err != nil {
		cfg.Log.Warn("service manager", "err", err)
	}
	w := &watchdog{alive: s.Alive, send: manager.Send, every: manager.Watchdog(), log: cfg.Log}
	defer w.start(ctx)()
	// No guard: it sends one datagram.
	defer context.AfterFunc(ctx, func() { _ = manager.Send(sdnotify.Stopping) })()
	if o.Start.Report {
		reportStart(nil)
		o.Start.Report = false // the start is reported
	}
	err = inTime(ctx, s.Run)
	if err == nil {
		cfg.Log.Info("the stack has ended")
	}
	return err
}

// takeBack makes the place of this network namespace that of root again, if root has given it
// to another user and this process is root. The error matches service.ErrRunning if a stack
// of that user runs, from which this process does not take over. If anything else is wrong with the
// place, service.New says so.
func (o *Options) takeBack(ctx context.Context) error {
	if os.Geteuid() != 0 || !errors.Is(place.Give(0, 0), place.ErrTaken) {
		return nil
	}
	var err error
	if o.Takeover.From {
		err = becomeUnitUser(ctx)
	}
	return cmp.Or(err, error(service.ErrRunning))
}

// endTime is how long an orderly end may take after a signal.
const endTime = 4500 * time.Millisecond

// errEnd means that the stack did not end by itself after a signal.
var errEnd = fmt.Errorf("the stack did not end in order within %v", endTime)

// inTime calls run, which must return soon after the end of ctx. If it does not,
// inTime returns without it: the process then ends, and the kernel closes the rest.
func inTime(ctx context.Context, run func(context.Context) error) error {
	ended := make(chan error, 1)
	// No guard: run gives each of its goroutines a guard.
	go func() { ended <- run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(endTime):
		return errEnd
	}
}

// eids returns the enterprise IDs of a stack without a configuration.
func (o *Options) eids() []string {
	if o.NoDefaultEID || o.RoCE == "v1" {
		return nil
	}
	return []string{userstack.DefaultUEID}
}

func (o *Options) config() (service.Config, error) {
	out := o.Err
	if o.Start.OnDemand { // its file is in memory (/run), and nobody rotates it
		out = capLog(out)
	}
	log := oplog.New(out, o.LogLevel)
	for _, n := range o.NetDevs {
		if _, err := net.InterfaceByName(n); err != nil {
			return service.Config{}, fmt.Errorf("no netdev %q: see 'ip link': %w", n, os.ErrNotExist)
		}
	}
	opts := []softroce.Option{softroce.WithLogger(log), softroce.WithoutNetdevs(divert.IsOurs)}
	switch o.RoCE {
	case "v1":
		opts = append(opts, softroce.WithGIDTypes(rdmaverbs.RoCEv1))
	case "v2":
		opts = append(opts, softroce.WithGIDTypes(rdmaverbs.RoCEv2))
	case "", "both":
	default:
		return service.Config{}, fmt.Errorf("invalid RoCE version %q: must be v1, v2 or both: %w", o.RoCE, os.ErrInvalid)
	}
	programs, err := o.Cgroup.dir()
	if err != nil {
		return service.Config{}, err
	}
	loops, err := o.Engine.start()
	if err != nil {
		return service.Config{}, err
	}
	if len(loops) > 0 {
		pollers := make([]softroce.Poller, len(loops))
		for i, l := range loops {
			pollers[i] = l
		}
		opts = append(opts, softroce.WithPoller(pollers...), softroce.WithWriteOnly())
	}
	roce := softroce.New(opts...)
	return service.Config{
		Cgroup: programs, RoCE: roce, DrainTimeout: o.Takeover.DrainTimeout, Release: o.Takeover.Release,
		Log: log, Engines: loops, IdleTimeout: o.IdleTimeout, UserFDs: o.UserFDs, UserRuns: o.UserRuns,
		NoLocal: o.NoLocal, Authorize: o.Allow.authorize(), Quiet: debug.FreeOSMemory,
		Stack: userstack.Config{
			Providers: []rdmaverbs.Provider{roce}, NetDevs: o.NetDevs,
			RecvBuf: o.RecvBuf, SendBuf: o.SendBuf, MaxLinks: o.MaxLinks, EyeCatcher: o.EyeCatcher, Log: log,
			GroupIdle: o.GroupIdle, StallTime: o.StallTime, Limits: o.Limits,
			// Version 2 of SMC-R needs RoCE version 2 GIDs.
			NoVersion2: o.RoCE == "v1",
		},
	}, nil
}

// maxThreads is the maximum of Threads.
const maxThreads = 64

// defaultBuf is the size in bytes of receive and send buffers. docs/architecture.md
// explains the value.
const defaultBuf = 256 << 10

// start starts the event loops: Threads of them, or one for each two processors,
// because programs need processors too, but at most 8.
func (o *EngineOptions) start() (loops []*engine.Loop, err error) {
	n := o.Threads
	switch {
	case o.Off:
		return nil, nil
	case n < 0 || n > maxThreads:
		return nil, fmt.Errorf("invalid number of threads %d: must be 1 to %d, or 0 to choose by the processors: %w", n, maxThreads, os.ErrInvalid)
	case n == 0:
		n = min(max(1, runtime.GOMAXPROCS(0)/2), 8)
	}
	for range n {
		l, err := engine.New(o.Spin)
		if err != nil {
			for _, l := range loops {
				err = errors.Join(err, l.Close())
			}
			return nil, err
		}
		loops = append(loops, l)
	}
	return loops, nil
}

// raiseOpenFiles raises the soft limit of open files to the hard limit, from which the
// limits of users are computed.
func raiseOpenFiles() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Cur == l.Max {
		return nil
	}
	l.Cur = l.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}
