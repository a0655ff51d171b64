// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/printable"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

// attachOptions say which cgroup is attached, and for what.
type attachOptions struct {
	*cmdutil.Factory
	target          target
	connect, accept bool
	always          bool
}

func newAttach(f *cmdutil.Factory) *cobra.Command {
	o := &attachOptions{Factory: f}
	cmd := o.command(o.attach, &cobra.Command{
		Use:   "attach " + targetForms,
		Short: "Have programs that run already use SMC-R",
		Long: "Attach a cgroup: from now on, connections of all programs in it and below it use SMC-R\n" +
			"if the peer uses SMC-R too. The programs keep their sockets and need no restart, also\n" +
			"those that listen. Open connections stay as they are. The setting stays when the cgroup is\n" +
			"removed and made again, as at a restart of a unit.\n\n" +
			"A container must be in the network namespace of the stack, as it is with the network of\n" +
			"its host. One with a network of its own needs a stack there: 'smcr attach' says how. A\n" +
			"container that is made anew with the same name has another cgroup.\n\n" +
			"'smcr program list' shows what is attached, and what became of the connections.",
		Example: "  smcr attach --unit nginx.service\n  smcr attach --pid 4711 --accept\n  smcr attach --container web\n  smcr attach --pod shop/web-0\n  smcr program list",
	})
	cmd.Flags().BoolVar(&o.connect, "connect", false, "only connections that the programs make")
	cmd.Flags().BoolVar(&o.always, "no-adapt", false, "try SMC-R for every connection, even if many short ones in a row did not benefit")
	cmd.Flags().BoolVar(&o.accept, "accept", false, "only connections that the programs accept")
	return cmd
}

// newProgram returns the command of what runs by 'smcr run' or 'smcr attach'.
func newProgram(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "program",
		Short: "Show the programs whose connections use SMC-R",
		Long: "A program uses SMC-R if its cgroup is attached to the stack. 'smcr run' starts a\n" +
			"program in a cgroup of its own, 'smcr attach' and 'smcr service enable' attach the\n" +
			"cgroup of programs that run already.",
		Example: "  smcr program list\n  smcr program list -o wide",
	})
	cmd.AddCommand(newProgramList(f))
	return cmd
}

func newDetach(f *cmdutil.Factory) *cobra.Command {
	o := &attachOptions{Factory: f}
	return o.command(o.detach, &cobra.Command{
		Use:   "detach " + targetForms,
		Short: "Leave new connections of attached programs to TCP",
		Long: "Detach a cgroup, which is the inverse of 'smcr attach'. Connections over SMC-R stay\n" +
			"as they are. A container or a pod that has ended is still attached, until it is detached.\n" +
			"One that is removed has no name: give its ID, which 'smcr program list' shows.",
		Example: "  smcr detach --unit nginx.service\n  smcr detach --container web",
	})
}

// command completes a command that does something with the cgroup of a target.
func (o *attachOptions) command(do func(context.Context) error, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cmdutil.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.target.check(cmd); err != nil {
			return err
		}
		return do(cmd.Context())
	}
	o.target.addFlags(cmd)
	return cmd
}

func (o *attachOptions) attach(ctx context.Context) error {
	if !o.connect && !o.accept {
		o.connect, o.accept = true, true
	}
	paths, err := o.target.paths(ctx)
	if err != nil {
		return err
	}
	if paths, err = o.here(paths); err != nil {
		return err
	}
	return o.each(ctx, paths, func(ctx context.Context, c nl.Attacher, path string) error {
		return c.Attach(ctx, nl.Attachment{Path: path, Connect: o.connect, Accept: o.accept, Always: o.always})
	})
}

// here returns the cgroups without those of containers that are all in other network namespaces, where the stack of this one takes no connections, and
// says so. If there is no other, this is an error. A cgroup that is no container's may have processes later.
func (o *attachOptions) here(paths []string) (here []string, err error) {
	what, again := "", ""
	switch t := o.target; {
	case t.container != "":
		what, again = "container "+t.container, "--container "+t.container
	case t.pod != "":
		what, again = "pod "+t.pod, "--pod "+t.pod
	}
	var notes []string
	for _, p := range paths {
		pid := elsewhere(p)
		if pid == 0 || what == "" {
			here = append(here, p)
		}
		if pid != 0 {
			notes = append(notes, fmt.Sprintf("%s is in a network namespace of its own (that of process %d), which needs a stack of its own: 'nsenter --target %[2]d --net smcr serve' there, and then 'nsenter --target %[2]d --net smcr attach %[3]s'",
				cmp.Or(what, "cgroup "+p), pid, cmp.Or(again, "--cgroup "+p)))
		}
	}
	if here == nil {
		return nil, cmdutil.Say(os.ErrInvalid, "%s", notes[0])
	}
	for _, n := range notes {
		o.IO.Printing()
		printable.Fprintf(o.IO.ErrOut, "smcr: %s\n", n)
	}
	return here, nil
}

func (o *attachOptions) detach(ctx context.Context) error {
	paths, err := o.target.paths(ctx)
	if errors.Is(err, os.ErrNotExist) {
		paths, err = o.ended(ctx, err)
	}
	if err != nil {
		return err
	}
	return o.each(ctx, paths, func(ctx context.Context, c nl.Attacher, path string) error {
		err := c.Detach(ctx, path)
		if errors.Is(err, os.ErrNotExist) {
			return cmdutil.Say(err, "cgroup %q is not attached: see 'smcr program list'", path)
		}
		return err
	})
}

// ended returns the attached cgroups of a container or a pod that does not run, which wait for it; or the error otherwise if there are none.
func (o *attachOptions) ended(ctx context.Context, otherwise error) (paths []string, err error) {
	if o.target.container == "" && o.target.pod == "" {
		return nil, otherwise
	}
	var attached []string
	if o.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		return withAttacher(c, func(a nl.Attacher) error {
			all, err := a.Attachments(ctx)
			for _, one := range all {
				attached = append(attached, one.Path)
			}
			return err
		})
	}) != nil {
		return nil, otherwise
	}
	if paths, err = o.target.ended(ctx, attached); errors.Is(err, os.ErrNotExist) {
		return nil, otherwise
	}
	return paths, err
}

// each calls do with each cgroup.
func (o *attachOptions) each(ctx context.Context, paths []string, do func(ctx context.Context, c nl.Attacher, path string) error) error {
	return o.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		err := withAttacher(c, func(a nl.Attacher) error {
			var errs []error
			for _, p := range paths {
				errs = append(errs, do(ctx, a, p))
			}
			return errors.Join(errs...)
		})
		if err == nil {
			o.NoteVolatile(ctx, c)
		}
		return err
	})
}

// withAttacher calls do if a stack takes the connections of programs.
func withAttacher(c nl.Control, do func(nl.Attacher) error) error {
	a, err := nl.AttacherOf(c)
	if err == nil {
		err = do(a)
	}
	if errors.Is(err, nl.ErrNotSupported) {
		return cmdutil.Say(err, "the stack takes no connections of programs: 'smcr info' says why")
	}
	return err
}

// An attachmentJSON is an attached cgroup in JSON.
type attachmentJSON struct {
	Stack   string           `json:"stack"`
	Cgroup  string           `json:"cgroup"`
	ID      uint64           `json:"id"`
	UID     uint32           `json:"uid"`
	Run     bool             `json:"run"`
	Connect bool             `json:"connect"`
	Accept  bool             `json:"accept"`
	Always  bool             `json:"always"`
	SMCR    uint64           `json:"smcr"`
	TCP     uint64           `json:"tcp"`
	Reasons []attachedReason `json:"reasons"`
}

// A programJSON is the cgroup of a change by 'smcr apply'.
type programJSON struct {
	Cgroup  string `json:"cgroup"`
	Connect bool   `json:"connect"`
	Accept  bool   `json:"accept"`
	Adapt   bool   `json:"adapt"`
}

func newProgramJSON(p config.Program) *programJSON {
	return &programJSON{p.Cgroup, p.Connect, p.Accept, !p.Always}
}

// An attachedReason is how many connections of a cgroup are TCP for a reason.
type attachedReason struct {
	Side   string `json:"side"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	Count  uint64 `json:"count"`
}

func newProgramList(f *cmdutil.Factory) *cobra.Command {
	return list[nl.Attachment, attachmentJSON]{
		source: tables(func(c nl.Control, ctx context.Context) (all []nl.Attachment, err error) {
			err = withAttacher(c, func(a nl.Attacher) error {
				all, err = a.Attachments(ctx)
				return err
			})
			return all, err
		}),
		layout: columns[nl.Attachment]{
			always: []column[nl.Attachment]{
				col("CGROUP", func(a *nl.Attachment) any { return a.Path }),
				col("KIND", func(a *nl.Attachment) any { return attachedKind(a) }),
				col("USER", func(a *nl.Attachment) any { return cmdutil.UserName(a.UID) }),
				col(">SMC-R", func(a *nl.Attachment) any { return a.SMCR }),
				col(">TCP", func(a *nl.Attachment) any { return allTCP(a) }),
			},
			wide: []column[nl.Attachment]{
				col("ID", func(a *nl.Attachment) any { return a.Cgroup }),
				col("SIDES", func(a *nl.Attachment) any { return attachedSides(a) }),
				col("WHY TCP", func(a *nl.Attachment) any { return mostTCP(a) }),
			},
		},
		json: func(r nl.Row[nl.Attachment]) attachmentJSON {
			a := r.Value
			j := attachmentJSON{r.Stack, a.Path, a.Cgroup, a.UID, a.Run, a.Connect, a.Accept, a.Always, a.SMCR, allTCP(&a), []attachedReason{}}
			for _, t := range a.TCP {
				j.Reasons = append(j.Reasons, attachedReason{t.Side.String(), fmt.Sprintf("0x%08x", t.Reason), smc.Diagnosis(t.Reason).Text(), t.Count})
			}
			return j
		},
	}.command(f, &cobra.Command{
		Use:     "list",
		Aliases: []string{"show"},
		Short:   "List the cgroups whose programs use SMC-R",
		Long: "List the cgroups whose programs use SMC-R, and what became of their connections since\n" +
			"they were attached. The kind is 'run' for a program under 'smcr run', 'attached' for\n" +
			"a cgroup of 'smcr attach', and 'waits' if there is no such cgroup now.",
		Example: "  smcr program list\n  smcr program list -o wide",
	})
}

func attachedKind(a *nl.Attachment) string {
	switch {
	case a.Run:
		return "run"
	case a.Cgroup == 0:
		return "waits"
	}
	return "attached"
}

func attachedSides(a *nl.Attachment) string {
	var sides []string
	if a.Connect {
		sides = append(sides, "connect")
	}
	if a.Accept {
		sides = append(sides, "accept")
	}
	return strings.Join(sides, ",")
}

func allTCP(a *nl.Attachment) (n uint64) {
	for _, t := range a.TCP {
		n += t.Count
	}
	return n
}

// mostTCP returns the most frequent reason for TCP; the stack lists that first.
func mostTCP(a *nl.Attachment) string {
	if len(a.TCP) == 0 {
		return "-"
	}
	return cmp.Or(smc.Diagnosis(a.TCP[0].Reason).Text(), fmt.Sprintf("0x%08x", a.TCP[0].Reason))
}
