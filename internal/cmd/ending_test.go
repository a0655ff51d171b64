// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/spf13/cobra"
)

// A lost is a stack whose answers have an error.
type lost struct {
	nl.Control
	err error
}

func (l lost) Devices(context.Context) ([]nl.Device, error)         { return nil, l.err }
func (l lost) Links(context.Context) ([]nl.Link, error)             { return nil, l.err }
func (l lost) LinkGroups(context.Context) ([]nl.LinkGroup, error)   { return nil, l.err }
func (l lost) Connections(context.Context) ([]nl.Connection, error) { return nil, l.err }
func (l lost) Stats(context.Context) (nl.Stats, error)              { return nl.Stats{}, l.err }

// TestEnding checks which lists show the stacks that have handed over to another process, and
// for which backends; and what happens if one of them ends meanwhile or cannot answer.
func TestEnding(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	sample := func() nl.Control { return nltest.NewFake(nltest.SampleState()) }
	ended := fmt.Errorf("nl: devices: %w", io.EOF)
	broken := errors.New("broken")
	both := []string{"ending-3", "user"}
	for _, tt := range []struct {
		name    string
		newCmd  func(*cmdutil.Factory) *cobra.Command
		backend string
		ending  nl.Multi
		want    []string
		err     error
	}{
		{"connections", newConnectionList, "user", nl.Multi{{Name: "ending-3", Control: sample()}}, both, nil},
		{"devices", newDeviceList, "user", nl.Multi{{Name: "ending-3", Control: sample()}}, both, nil},
		{"links", newLinkList, "auto", nl.Multi{{Name: "ending-3", Control: sample()}}, both, nil},
		{"link groups", newLinkGroupList, "user", nl.Multi{{Name: "ending-3", Control: sample()}}, both, nil},
		{"statistics", newStatsShow, "user", nl.Multi{{Name: "ending-3", Control: sample()}}, both, nil},
		{"configuration", newUEIDList, "user", nl.Multi{{Name: "ending-3", Control: sample()}}, both[1:], nil},
		{"another backend", newLinkList, "kernel", nl.Multi{{Name: "ending-3", Control: sample()}}, both[1:], nil},
		{"one has ended", newDeviceList, "user", nl.Multi{{Name: "ending-1", Control: lost{sample(), ended}}, {Name: "ending-3", Control: sample()}}, both, nil},
		{"one has ended, statistics", newStatsShow, "user", nl.Multi{{Name: "ending-1", Control: lost{sample(), ended}}}, both[1:], nil},
		{"one is broken", newLinkGroupList, "user", nl.Multi{{Name: "ending-1", Control: lost{sample(), broken}}}, nil, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			streams, _, out, _ := cmdutil.MemoryStreams()
			f := &cmdutil.Factory{
				IO: streams, Backend: tt.backend, NetDev: cmdutil.NetDev,
				Dial: func(context.Context, string) (nl.Multi, error) {
					return nl.Multi{{Name: "user", Control: sample()}}, nil
				},
				Ending: func(context.Context) (nl.Multi, error) { return slices.Clone(tt.ending), nil },
			}
			cmd := tt.newCmd(f)
			cmd.SetArgs(strings.Fields("-o json"))
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, tt.err) {
				t.Fatalf("%v, want %v", err, tt.err)
			}
			var got []string
			if tt.err == nil {
				var rows []struct{ Stack string }
				if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				for _, r := range rows {
					got = append(got, r.Stack)
				}
				slices.Sort(got)
				got = slices.Compact(got)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("rows of %q, want %q", got, tt.want)
			}
		})
	}
}
