// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/plain"
	"smcr/internal/printable"
	"smcr/internal/serve"
	"smcr/nl"
	"smcr/userstack/broker"
	"smcr/userstack/launch"
)

// kernelTimeout is the time limit for requests to the kernel before a program starts
// and after it has ended.
const kernelTimeout = 5 * time.Second

// errNoDevice means that the kernel's SMC has no device for connections.
var errNoDevice = errors.New("the kernel's SMC has no RoCE or ISM device with an active port")

// carrier is the transport of the connections of a program.
type carrier struct {
	mode    string         // never ModeAuto
	broker  *broker.Client // the session with the stack, for ModeUser
	started bool           // ModeUser: the stack was started for this program
	control *nl.Client     // for ModeKernel; nil if the kernel has no netlink interface
}

func (c *carrier) close() {
	if c.broker != nil {
		_ = c.broker.Close()
	}
	if c.control != nil {
		_ = c.control.Close()
	}
}

// choose selects the transport. In mode auto there is always one, with a message to
// the user if it is TCP. In other modes, the error says what is missing.
func choose(ctx context.Context, o *Options, log *slog.Logger) (*carrier, error) {
	switch o.Mode {
	case ModeTCP:
		return &carrier{mode: ModeTCP}, nil
	case ModeUser:
		return user(ctx, o, log)
	case ModeKernel:
		c, err := kernel(ctx, o)
		if errors.Is(err, errNoDevice) {
			// A device may become available while the program runs.
			log.Warn(errNoDevice.Error() + ": connections are plain TCP until there is one")
			err = nil
		}
		if errors.Is(err, launch.ErrNoKernelSMC) {
			if o.Kernel.Inet {
				return nil, cmdutil.Say(errors.Join(nl.ErrNoBackend, err), "the kernel has no sockets with protocol IPPROTO_SMC: omit --ipproto-smc (it needs Linux 6.11), try 'modprobe smc', or use --mode user")
			}
			return nil, cmdutil.Say(errors.Join(nl.ErrNoBackend, err), "the kernel has no SMC: try 'modprobe smc', or use --mode user")
		}
		return c, err
	}
	var why []error
	// With flags for a user-space stack, the kernel is not used.
	if len(o.Serve) == 0 {
		c, err := kernel(ctx, o)
		if err == nil {
			return c, nil
		}
		if c != nil {
			c.close()
		}
		log.Debug("not with the kernel's SMC", "err", err)
		if errors.Is(err, launch.ErrNoKernelSMC) {
			err = errors.New("the kernel has no SMC")
		}
		why = append(why, err)
	}
	c, err := user(ctx, o, log)
	if err == nil {
		if o.Kernel != (launch.Kernel{}) {
			log.Warn("the user-space stack carries the connections: --rcvbuf, --sndbuf and --ipproto-smc have no effect", "why", why[0])
		}
		return c, nil
	}
	if errors.Is(err, serve.ErrPrivilege) && os.Getenv(invocationEnv) != "" {
		log.Info("connections are TCP until there is a stack", "err", errors.Join(append(why, err)...))
		return &carrier{mode: ModeUser}, nil
	}
	plainTCP(o, append(why, err)...)
	return &carrier{mode: ModeTCP}, nil
}

// invocationEnv is set in the services of systemd. A service may start before its stack, and runs for
// long: so its launcher waits for one, where another program would be TCP for good.
const invocationEnv = "INVOCATION_ID"

// plainTCP prints why all connections are TCP.
func plainTCP(o *Options, why ...error) {
	var texts []string
	for _, err := range why {
		texts = append(texts, strings.Join(strings.Fields(plain.Text(err.Error())), " "))
	}
	printable.Fprintf(o.Err, "smcr: all connections over TCP: %s\n", strings.Join(texts, "; "))
}

// user opens a session with the user-space stack.
func user(ctx context.Context, o *Options, log *slog.Logger) (*carrier, error) {
	progress := o.IO.Progress("waiting for the user-space stack")
	c, started, err := session(ctx, strings.Join(o.Argv, " "), o.Serve, o.flags()...)
	progress.Stop()
	if err != nil {
		return nil, sessionError(err)
	}
	if !started && len(o.Serve) > 0 {
		log.Warn("the stack is already running: --netdev and --assume-smc have no effect")
	}
	if o.Local && !c.Local() {
		log.Warn("the stack was started with --no-local: --local has no effect")
	}
	return &carrier{mode: ModeUser, broker: c, started: started}, nil
}

// sessionError converts the error of a session with a stack into one for the user.
func sessionError(err error) error {
	if errors.Is(err, serve.ErrPrivilege) {
		return cmdutil.Say(errors.Join(err, os.ErrPermission), "no smcr stack in this network namespace and no privilege to start one: run 'smcr serve' as root")
	}
	return err
}

// kernel checks whether the kernel can carry connections. The error matches
// launch.ErrNoKernelSMC if it has no SMC, and errNoDevice if only a device is
// missing. In the latter case, the carrier is valid too.
func kernel(ctx context.Context, o *Options) (*carrier, error) {
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	if err := o.Kernel.Probe(); err != nil {
		return nil, err
	}
	c := &carrier{mode: ModeKernel}
	var err error
	if c.control, err = nl.DialKernel(ctx); err != nil {
		// A kernel before 5.11 has SMC sockets, but no netlink interface for SMC.
		if errors.Is(err, nl.ErrNoBackend) {
			err = nil
		}
		return c, err
	}
	if ok, err := usable(ctx, c.control); err != nil || ok {
		return c, err
	}
	return c, errNoDevice
}

// devices is the part of a control interface that lists devices.
type devices interface {
	Devices(ctx context.Context) ([]nl.Device, error)
	nl.ControlSMCD
}

// usable reports whether there is an ISM device, or a RoCE device with an
// active port.
func usable(ctx context.Context, c devices) (bool, error) {
	roce, err := c.Devices(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range roce {
		if slices.ContainsFunc(d.Ports, func(p nl.Port) bool { return p.Active }) {
			return true, nil
		}
	}
	ism, err := c.DevicesD(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		return false, nil
	}
	return len(ism) > 0, err
}
