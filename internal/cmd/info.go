// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/output"
	"smcr/internal/place"
	"smcr/internal/printable"
	"smcr/internal/reasons"
	"smcr/internal/serve"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

// userStack is the name of the user-space stack of this network namespace.
const userStack = "user"

func newInfo(f *cmdutil.Factory) *cobra.Command {
	userAnswers := false
	cmd := list[stackInfo, infoJSON]{
		source: fromStacks(func(ctx context.Context, m nl.Multi) ([]nl.Row[stackInfo], error) {
			rows, err := readInfos(ctx, m)
			userAnswers = userAnswers || slices.ContainsFunc(rows, func(r nl.Row[stackInfo]) bool { return r.Stack == userStack })
			return rows, err
		}),
		report: func(b *strings.Builder, rows []nl.Row[stackInfo]) {
			for i, r := range rows {
				if i > 0 {
					b.WriteString("\n")
				}
				describe(b, r)
			}
		},
		json: newInfoJSON,
	}.command(f, &cobra.Command{
		Use:     "info",
		Short:   "Show the SMC stacks of this network namespace",
		Example: "  smcr info\n  smcr info --backend kernel\n  smcr info -o json",
		Long: "Show the SMC stacks of this network namespace, the kernel's and the user-space\n" +
			"stack: versions, features, and devices. If a stack that 'smcr run' started has\n" +
			"died, smcr shows when it died and where its log is.\n\n" +
			"If SMC-R did not work or did not pay with a peer, the user-space stack leaves new\n" +
			"connections with it to TCP for a time. The lines below 'Stay TCP' name these peers,\n" +
			"the reason (see 'smcr explain'), and the users concerned. Users see their own lines.\n" +
			"Root and the owner of the stack see all.\n\n" +
			"Changes that commands make in the user-space stack last until the machine\n" +
			"restarts. The stack keeps them in the file that State shows. To make them\n" +
			"permanent, run 'smcr export > " + config.DefaultPath + "'.",
		Args: cmdutil.NoArgs,
	})
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := show(cmd, args)
		if !userAnswers {
			NoteDied(f) // its log is all that is left of the stack
		}
		return err
	}
	return cmd
}

// A stackInfo is a stack: what it says of itself, and what it has.
type stackInfo struct {
	nl.SysInfo
	devices []nl.Device // RoCE devices
	ueids   int
	died    *serve.Died // the stack in user space before this one, if it died
	// draining are the stacks that have handed over to this one and still have connections.
	draining []draining
	// learnt are the peers with which connections stay TCP for a time, in the order of the listing.
	learnt []nl.Learnt
}

// draining is a stack that has handed over.
type draining struct {
	nl.Drain
	age         time.Duration // since it has handed over
	connections int
}

// onlyRoCEv1 reports whether the devices of a user-space stack have no RoCE version 2, which version 2 of SMC-R needs.
func (s *stackInfo) onlyRoCEv1() bool { return s.RoCEv1 && !s.RoCEv2 }

// readDraining asks the stacks that have handed over.
func readDraining(ctx context.Context) (all []draining) {
	for _, d := range nl.Draining() {
		c, err := nl.DialEnding(ctx, d.Name)
		if err != nil {
			continue // it has just ended
		}
		conns, err := c.Connections(ctx)
		_ = c.Close()
		if err == nil {
			all = append(all, draining{d, time.Since(d.Since), nl.CountCarried(conns)})
		}
	}
	return all
}

// readInfos asks the stacks.
func readInfos(ctx context.Context, m nl.Multi) ([]nl.Row[stackInfo], error) {
	infos, err := nl.Each(ctx, m, nl.Control.SysInfo)
	if err != nil {
		return nil, err
	}
	devices, err := nl.All(ctx, m, nl.Control.Devices)
	if err != nil {
		return nil, err
	}
	ueids, err := nl.All(ctx, m, nl.Control.UEIDs)
	if err != nil && !errors.Is(err, nl.ErrNotSupported) {
		return nil, err
	}
	rows := make([]nl.Row[stackInfo], len(infos))
	for i, r := range infos {
		rows[i] = nl.Row[stackInfo]{Stack: r.Stack, Value: stackInfo{SysInfo: r.Value}}
		v := &rows[i].Value
		for _, d := range devices {
			if d.Stack == r.Stack {
				v.devices = append(v.devices, d.Value)
			}
		}
		for _, e := range ueids {
			if e.Stack == r.Stack {
				v.ueids++
			}
		}
		if v.learnt, err = learnt(ctx, m, r.Stack); err != nil {
			return nil, err
		}
		if r.Stack == userStack {
			if d, ok := serve.LastDied(); ok {
				v.died = &d
			}
			v.draining = readDraining(ctx)
		}
	}
	return rows, nil
}

// learnt asks a stack with whom connections stay TCP for a time. One that knows no such question has no answer.
func learnt(ctx context.Context, m nl.Multi, stack string) (all []nl.Learnt, err error) {
	for _, b := range m {
		if b.Name != stack {
			continue
		}
		l, err := nl.LearnerOf(b)
		if err == nil {
			all, err = l.Learnt(ctx)
		}
		if err != nil && !errors.Is(err, nl.ErrNotSupported) {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b nl.Learnt) int {
		return cmp.Or(a.Remote.Compare(b.Remote), a.Local.Compare(b.Local), cmp.Compare(a.UID, b.UID))
	})
	return all, nil
}

// deviceNames returns the names of devices, with what a device is that is no RDMA card.
func deviceNames(devices []nl.Device) string {
	names := make([]string, len(devices))
	for i := range devices {
		names[i] = devices[i].Name
		if devices[i].SoftwareRoCE() {
			names[i] += " (software RoCE)"
		}
	}
	return strings.Join(names, ", ")
}

// software returns how many of the devices are no RDMA cards.
func software(devices []nl.Device) (n int) {
	for i := range devices {
		if devices[i].SoftwareRoCE() {
			n++
		}
	}
	return n
}

// An infoJSON is a stack in JSON.
type infoJSON struct {
	Stack        string `json:"stack"`
	Name         string `json:"name,omitempty"`
	StackVersion string `json:"stack_version,omitempty"`
	PID          uint32 `json:"pid,omitempty"`
	UID          uint32 `json:"uid"`
	Version      uint8  `json:"smc_version"`
	Release      uint8  `json:"smc_release"`
	LocalHost    string `json:"hostname"`
	SEID         string `json:"seid,omitempty"`
	ISMv2        bool   `json:"smcd_v2"`
	SMCRv2       bool   `json:"smcr_v2"`
	UEIDs        int    `json:"ueids"`
	RoCEDevices  int    `json:"roce_devices"`
	SoftwareRoCE int    `json:"software_roce_devices,omitempty"`

	// Only user-space stacks have the following fields.
	RoCEVersions []string `json:"roce_versions,omitempty"`
	Problems     []string `json:"problems,omitempty"`
	ConfigFiles  []string `json:"config_files,omitempty"`
	StateFile    string   `json:"state_file,omitempty"`
	StateError   string   `json:"state_error,omitempty"`
	DiedLog      string   `json:"died_log,omitempty"`
	Died         string   `json:"died,omitempty"`

	Draining []drainingJSON `json:"draining,omitempty"`
	Learnt   []learntJSON   `json:"learnt,omitempty"`
}

// A learntJSON is a peer with which connections stay TCP for a time.
type learntJSON struct {
	UID    *uint32 `json:"uid,omitempty"` // not if it is so for all users
	Local  string  `json:"local,omitempty"`
	Peer   string  `json:"peer"`
	Port   uint16  `json:"port,omitempty"` // not if it is so for all ports
	Reason string  `json:"reason"`
	Name   string  `json:"name,omitempty"`
	Text   string  `json:"text,omitempty"`
	// The reason of the peer, if that has declined and has given one.
	PeerReason string  `json:"peer_reason,omitempty"`
	PeerName   string  `json:"peer_name,omitempty"`
	PeerText   string  `json:"peer_text,omitempty"`
	Left       float64 `json:"left_s"`
}

func newLearntJSON(l *nl.Learnt) learntJSON {
	why := smc.Diagnosis(l.Why)
	j := learntJSON{
		Peer: l.Remote.Addr().String(), Port: l.Remote.Port(), Reason: code(l.Why), Name: reasons.Name(why), Text: why.Text(), Left: l.Left.Seconds(),
	}
	if peer := smc.Diagnosis(l.Peer); peer != 0 {
		j.PeerReason, j.PeerName, j.PeerText = code(l.Peer), reasons.Name(peer), peer.Text()
	}
	if !l.Everyone {
		j.UID = &l.UID
	}
	if l.Local.IsValid() {
		j.Local = l.Local.String()
	}
	return j
}

// A drainingJSON is a stack that has handed over.
type drainingJSON struct {
	Stack       string `json:"stack"`
	PID         int    `json:"pid"`
	Since       string `json:"since"`
	Until       string `json:"until,omitempty"` // not if it waits for ever
	Connections int    `json:"connections"`
}

func newInfoJSON(r nl.Row[stackInfo]) infoJSON {
	s := &r.Value
	j := infoJSON{
		Stack: r.Stack, Name: s.Stack, StackVersion: s.StackVersion, PID: s.PID, UID: s.UID, Version: s.Version, Release: s.Release,
		LocalHost: s.LocalHost, SEID: s.SEID, ISMv2: s.ISMv2, SMCRv2: s.SMCRv2, UEIDs: s.ueids, RoCEDevices: len(s.devices), SoftwareRoCE: software(s.devices),
		RoCEVersions: roceVersions(&s.SysInfo), Problems: s.Problems, ConfigFiles: s.ConfigFiles, StateFile: s.StateFile, StateError: s.StateError,
	}
	if s.died != nil {
		j.DiedLog, j.Died = s.died.Log, s.died.Last.Format(time.RFC3339)
	}
	for _, d := range s.draining {
		x := drainingJSON{Stack: d.Name, PID: d.PID, Since: d.Since.Format(time.RFC3339), Connections: d.connections}
		if !d.Until.IsZero() {
			x.Until = d.Until.Format(time.RFC3339)
		}
		j.Draining = append(j.Draining, x)
	}
	for i := range s.learnt {
		j.Learnt = append(j.Learnt, newLearntJSON(&s.learnt[i]))
	}
	return j
}

// NoteDied writes to standard error that the last user-space stack of this network
// namespace died, and where its log is, or that it runs and nobody finds it, if --backend asks for
// that stack.
func NoteDied(f *cmdutil.Factory) {
	if f.Backend != "auto" && f.Backend != userStack {
		return
	}
	if d, ok := serve.LastDied(); ok {
		printable.Fprintf(f.IO.ErrOut, "smcr: a user-space stack of this network namespace died: %s\n", diedText(d))
	}
	if err := place.Lost(); err != nil {
		printable.Fprintf(f.IO.ErrOut, "smcr: %s\n", err)
	}
}

// diedText returns when a stack died and where its log is.
func diedText(d serve.Died) string {
	return fmt.Sprintf("%s, log %s", d.Last.Format(time.RFC3339), d.Log)
}

// describe writes the text about a stack.
func describe(b *strings.Builder, r nl.Row[stackInfo]) {
	s := r.Value
	line := func(name, format string, args ...any) {
		printable.Fprintf(b, "%-16s  %s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("Stack", "%s", r.Stack)
	if s.Stack != "" {
		line("Service", "%s, process %d, user %d", strings.TrimSpace(s.Stack+" "+s.StackVersion), s.PID, s.UID)
	}
	line("SMC Version", "%d.%d", s.Version, s.Release)
	line("SMC Hostname", "%s", output.Or(s.LocalHost))
	line("SMC-R Features", "%s", output.SMCVersions(s.SMCRv2))
	switch {
	case !s.SMCRv2:
	case s.onlyRoCEv1():
		line("SMC-R v2 EIDs", "%d, not used: without RoCE version 2, all connections use version 1, for which both hosts must be in one subnet", s.ueids)
	case s.ueids == 0:
		line("SMC-R v2 EIDs", "none: version 2 is not used, see 'smcr ueid add'")
	case s.Stack != "":
		line("SMC-R v2 EIDs", "%d; connections over IPv6 use version 1", s.ueids)
	default:
		line("SMC-R v2 EIDs", "%d", s.ueids)
	}
	if s.Stack == "" {
		line("SMC-D Features", "%s", output.SMCVersions(s.Version >= 2))
	} else {
		line("SMC-D Features", "none: the user-space stack has no SMC-D")
	}
	line("SEID", "%s", output.Or(s.SEID))
	if versions := roceVersions(&s.SysInfo); len(versions) > 0 {
		line("RoCE Versions", "%s", strings.Join(versions, " "))
	}
	if s.RoCEv2 {
		line("RoCE Port", "UDP 4791, which must be open between the hosts")
	}
	if len(s.devices) == 0 {
		line("RoCE Devices", "0")
	} else {
		line("RoCE Devices", "%d: %s", len(s.devices), deviceNames(s.devices))
	}
	if software(s.devices) > 0 {
		line("Software RoCE", "no card: the host's processors do its work, see smcr(7)")
	}
	for _, p := range s.Problems {
		line("Problem", "%s", p)
	}
	if s.ConfigFiles != nil {
		line("Configuration", "%s", strings.Join(s.ConfigFiles, " "))
	}
	switch {
	case s.StateFile != "":
		line("State", "%s until the next boot; to make it permanent: 'smcr export > %s'", s.StateFile, config.DefaultPath)
	case s.StateError != "":
		line("State", "kept only while the stack runs: %s", s.StateError)
	}
	if n := len(s.draining); n > 0 {
		line("Draining", "%s", output.Count(n, "stack")+" with connections, the oldest first")
		for _, d := range s.draining {
			until := "after its last connection"
			if !d.Until.IsZero() {
				until += ", at the latest " + d.Until.Format(time.RFC3339)
			}
			line("  "+d.Name, "process %d, for %v, %s, ends %s", d.PID, d.age.Round(time.Second), output.Count(d.connections, "connection"), until)
		}
	}
	if n := len(s.learnt); n > 0 {
		line("Stay TCP", "connections with the following, for a time")
		for i := range s.learnt[:min(n, mostLearnt)] {
			l := &s.learnt[i]
			whose := fmt.Sprintf("user %d", l.UID)
			if l.Everyone {
				whose = "all users"
			}
			line("  "+whose, "%s", learntText(l))
		}
		if n > mostLearnt {
			line("  others", "%d, see 'smcr info -o json'", n-mostLearnt)
		}
	}
	if s.died != nil {
		line("Previous Stack", "died %s", diedText(*s.died))
	}
}

// mostLearnt is how many peers the text has with which connections stay TCP.
const mostLearnt = 20

// learntText returns with whom connections stay TCP, why, and for how long.
func learntText(l *nl.Learnt) string {
	named := func(why uint32) string { return cmp.Or(reasons.Name(smc.Diagnosis(why)), code(why)) }
	peer, why := l.Remote.String(), named(l.Why)
	if l.Peer != 0 {
		why += " (" + named(l.Peer) + ")"
	}
	if l.Remote.Port() == 0 {
		peer = l.Remote.Addr().String()
	}
	if l.Local.IsValid() {
		peer += " from " + l.Local.String()
	}
	if l.Left == 0 {
		return fmt.Sprintf("%s, %s, until the next connection has tried", peer, why)
	}
	return fmt.Sprintf("%s, %s, for %v", peer, why, l.Left.Round(time.Second))
}

// roceVersions returns the versions of RoCE that the devices of a user-space stack
// speak. The versions of the kernel's devices are not known here.
func roceVersions(s *nl.SysInfo) (versions []string) {
	if s.RoCEv1 {
		versions = append(versions, "v1")
	}
	if s.RoCEv2 {
		versions = append(versions, "v2")
	}
	return versions
}
