// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/kernelsmc"
	"smcr/internal/plain"
	"smcr/internal/printable"
	"smcr/internal/serve"
	"smcr/nl"
)

// kernelTimeout is the time limit for requests to the kernel before a program starts
// and after it has ended.
const kernelTimeout = 5 * time.Second

// errNoDevice means that the kernel's SMC has no device for connections.
var errNoDevice = errors.New("the kernel's SMC has no RoCE or ISM device with an active port")

// carrier is the transport of the connections of a program.
type carrier struct {
	mode    string        // never ModeAuto
	control *nl.Client    // the stack, or the kernel; nil if that has no netlink interface, or if there is no stack yet
	in      nl.Attachment // for ModeUser: the cgroup of this process
}

func (c *carrier) close() {
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
		if errors.Is(err, kernelsmc.ErrNoSMC) {
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
		if errors.Is(err, kernelsmc.ErrNoSMC) {
			err = errors.New("the kernel has no SMC")
		}
		why = append(why, err)
	}
	c, err := user(ctx, o, log)
	if err == nil {
		if o.Kernel != (kernelsmc.Config{}) {
			log.Warn("the user-space stack carries the connections: --rcvbuf, --sndbuf and --ipproto-smc have no effect", "why", why[0])
		}
		return c, nil
	}
	why = append(why, err)
	if errors.Is(err, serve.ErrPrivilege) {
		if in, ok := ahead(ctx, log); ok {
			tcpFor(o, "connections are TCP until there is a stack", why...)
			return &carrier{mode: ModeUser, in: in}, nil
		}
	}
	plainTCP(o, why...)
	return &carrier{mode: ModeTCP}, nil
}

// plainTCP prints why all connections are TCP.
func plainTCP(o *Options, why ...error) { tcpFor(o, "all connections over TCP", why...) }

// tcpFor prints why connections are TCP.
func tcpFor(o *Options, what string, why ...error) {
	var texts []string
	for _, err := range why {
		texts = append(texts, strings.Join(strings.Fields(plain.Text(strings.Join(printable.Lines(err), "; "))), " "))
	}
	printable.Fprintf(o.Err, "smcr: %s: %s\n", what, strings.Join(texts, "; "))
}

// kernel checks whether the kernel can carry connections. The error matches
// kernelsmc.ErrNoSMC if it has no SMC, and errNoDevice if only a device is
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
