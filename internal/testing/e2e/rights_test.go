// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"
)

// TestRights: a program sets options of its own socket, with its own rights. So it gets the same results over SMC-R as over TCP.
func TestRights(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	plainAddr := l.B.Addr() + ":5002"
	plain := l.B.Go(t, bin("probe"), "server", plainAddr)
	if err := plain.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	stack := l.serve(l.A)
	answers := func(argv []string) (lines []string, log string) {
		t.Helper()
		p := l.A.Go(t, argv[0], argv[1:]...)
		wantEnd(t, p)
		for line := range strings.Lines(p.Log()) {
			if !strings.HasPrefix(line, "smcr: ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines, p.Log()
	}
	run := func(argv ...string) []string {
		return append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--"}, argv...)
	}
	smc := []string{bin("probe"), "rights", addr}
	tcp := []string{bin("probe"), "rights", plainAddr}
	userns := func(argv ...string) []string {
		return append([]string{"unshare", "--user", "--map-root-user"}, argv...)
	}
	powerless := func(argv ...string) []string {
		return append([]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}, argv...)
	}
	for _, tt := range []struct {
		name       string
		smc, tcp   []string
		privileged bool
	}{
		{"root", run(smc...), tcp, true},
		{"a user's program, started by root", run(as(hostileUser, smc...)...), as(hostileUser, tcp...), false},
		{"a user's program", as(hostileUser, run(smc...)...), as(hostileUser, tcp...), false},
		{"root without capabilities, started by root", run(powerless(smc...)...), powerless(tcp...), false},
		{"root without capabilities", powerless(run(smc...)...), powerless(tcp...), false},
		{"a user namespace, started by root", run(userns(smc...)...), userns(tcp...), false},
		{"a user namespace", userns(run(smc...)...), userns(tcp...), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want, _ := answers(tt.tcp)
			got, log := answers(tt.smc)
			wantSummary(t, log, 1)
			if len(want) < 11 || !slices.Equal(got, want) {
				t.Errorf("over SMC-R\n\t%s\nover TCP\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			for _, name := range []string{"SO_MARK", "IP_TRANSPARENT"} {
				if may := slices.Contains(got, name+": <nil>"); may != tt.privileged {
					t.Errorf("%s may be set: %v", name, may)
				}
			}
		})
	}
	terminate(t, plain)
	terminate(t, server)
	terminate(t, stack)
}

// TestUserRules: the kernel applies its rules for users to the user of the program.
func TestUserRules(t *testing.T) {
	l := newLab(t, "setpriv", "ip")
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	stack := l.serve(l.A)
	if _, err := l.A.Output(t.Context(), "ip", "rule", "add", "priority", "1", "uidrange", hostileUser+"-"+hostileUser, "prohibit"); err != nil {
		t.Fatal(err)
	}
	smc := []string{bin("smcr"), "run", "--mode", "user", "-v", "--"}
	for uid, want := range map[string]string{hostileUser: "permission denied", otherUser: "", "0": ""} {
		argv := as(uid, bin("probe"), "abort", addr)
		for how, argv := range map[string][]string{"TCP": argv, "SMC-R": slices.Concat(smc, argv)} {
			p := l.A.Go(t, argv[0], argv[1:]...)
			err := p.Wait(endTime)
			if want == "" && (err != nil) {
				t.Errorf("user %s by %s: %v\n%s", uid, how, err, p.Log())
			}
			if want != "" && (err == nil || !strings.Contains(p.Log(), want)) {
				t.Errorf("user %s by %s: %v, want %s\n%s", uid, how, err, want, p.Log())
			}
			if want == "" && how == "SMC-R" {
				wantSummary(t, p.Log(), 1)
			}
		}
	}
	terminate(t, server)
	terminate(t, stack)
}
