// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"io"
	"time"

	"smcr/nl"
)

// reportPatience is how long the status of a program waits for the last of its processes, so that
// smcr run -v reports once.
const reportPatience = 200 * time.Millisecond

// devicesTimeout is how long the stack may take to list its devices.
const devicesTimeout = time.Second

// untilNow says that a program has ended, and not all of its processes.
const untilNow = "smcr: the program has ended, but processes that it started still run; so far:"

// print prints what f writes, in one write: several programs may have the same standard error. Whoever reads it finds it when the
// program has ended: it is printed before the waiter ends.
func (o *Options) print(f func(io.Writer)) {
	var b bytes.Buffer
	f(&b)
	_, _ = o.Err.Write(b.Bytes())
}

// userDevices returns the devices of the user-space stack, or none if it does not answer: the
// program has ended by then, and its user waits for the prompt.
func userDevices(ctx context.Context) []nl.Device {
	// The program's end may have ended ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devicesTimeout)
	defer cancel()
	c, err := nl.DialUser(ctx)
	if err != nil {
		return nil
	}
	defer c.Close()
	list, err := c.Devices(ctx)
	if err != nil {
		return nil
	}
	return list
}
