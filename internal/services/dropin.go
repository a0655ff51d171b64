// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
)

// Reasons why a unit cannot be put under smcr run. They are wrapped with what to do.
var (
	// ErrNoProgram means that the unit starts no program that could use the network.
	ErrNoProgram = errors.New("the unit starts no program of its own")
	// ErrUnder means that something else than smcr service has put the unit under smcr run.
	ErrUnder = errors.New("the unit is under smcr run already")
	// ErrUnfit means that smcr run cannot work within the unit.
	ErrUnfit = errors.New("smcr run cannot work in this unit")
)

// A DropIn is a file that changes a unit.
type DropIn struct {
	Text  string
	Notes []string // what the administrator should know, a sentence each
}

// calls are the system calls that smcr run needs beside those of @system-service. A line that
// names calls adds them to a list of permitted ones, and removes them from one of forbidden ones.
const calls = "pidfd_getfd pidfd_open process_vm_readv process_vm_writev seccomp"

// tracing is the capability with which a launcher may access a program that has changed its user.
const tracing = "CAP_SYS_PTRACE"

// New returns the drop-in file that starts a unit under smcr run. smcr is the path of the program,
// and stack is the unit of the stack, or empty if there is none. pidFile returns the file that has
// the number of the unit's main process, or nothing.
func New(u Unit, smcr, stack string, pidFile func() string) (DropIn, error) {
	if err := fits(u, smcr); err != nil {
		return DropIn{}, err
	}
	var d DropIn
	var b strings.Builder
	name := strings.TrimSuffix(u.Name, ".service")
	fmt.Fprintf(&b, "# Made by 'smcr service enable %s'. 'smcr service disable %s' removes it.\n", name, name)
	if stack != "" {
		fmt.Fprintf(&b, "\n[Unit]\n# The stack is there before the program listens.\nWants=%s\nAfter=%[1]s\n", stack)
	}
	b.WriteString("\n[Service]\nExecStart=\n")
	for _, value := range u.exec() {
		c := parseCommand(value)
		if strings.Contains(c.prefix, "@") {
			return DropIn{}, fmt.Errorf("%w: ExecStart=%s gives the program another name with @, which smcr run does not: write the drop-in file by hand", ErrUnfit, value)
		}
		fmt.Fprintf(&b, "ExecStart=%s%s run -- %s\n", c.prefix, smcr, c.argv)
	}
	b.WriteString(sandbox(u, smcr, &d))
	if u.setting("Type") == "forking" && u.setting("PIDFile") == "" && (u.setting("GuessMainPID") == "" || u.on("GuessMainPID")) {
		// systemd takes the only process that is left for the main one; the launcher is another one.
		if file := pidFile(); file != "" {
			fmt.Fprintf(&b, "# The launcher is a process of the unit, too, so systemd cannot guess the main one.\nPIDFile=%s\n", file)
		} else {
			d.Notes = append(d.Notes, "systemd will not know the main process: the unit has Type=forking and no PIDFile=. Start it once without smcr, and enable it while it runs, or add PIDFile= to it.")
		}
	}
	if p := path.Base(parseCommand(u.exec()[0]).program()); p == "sshd" || p == "cron" || p == "login" {
		d.Notes = append(d.Notes, "programs that it starts get no privileges from set-user-ID files: sudo and su do not work in its sessions.")
	}
	d.Text = b.String()
	return d, nil
}

// fits returns why smcr run cannot work within a unit.
func fits(u Unit, smcr string) error {
	if err := loaded(u); err != nil {
		return err
	}
	p := u.Props
	name := strings.TrimSuffix(u.Name, ".service")
	switch {
	case p["Transient"] == "yes":
		return fmt.Errorf("%w: unit %s is transient: start it with 'systemd-run smcr run -- …'", ErrUnfit, u.Name)
	}
	if err := something(u); err != nil {
		return err
	}
	for _, value := range u.exec() {
		switch c := parseCommand(value); {
		case path.Base(c.program()) == "smcr" && strings.HasPrefix(u.Name, "smcr"):
			return fmt.Errorf("%w: %s is a stack or a part of smcr", ErrUnfit, u.Name)
		case path.Base(c.program()) == "smcr" || path.Base(c.program()) == "smc_run":
			return fmt.Errorf("%w: ExecStart=%s: 'systemctl cat %s' shows the file", ErrUnder, value, name)
		}
	}
	for _, root := range []string{"RootDirectory", "RootImage"} {
		if v := u.setting(root); v != "" && v != "/" {
			return fmt.Errorf("%w: it has %s=%s, in which there is no smcr: copy it there with 'smcr run --install', and write the drop-in file by hand", ErrUnfit, root, v)
		}
	}
	if u.on("PrivateNetwork") && u.setting("NetworkNamespacePath") == "" {
		return fmt.Errorf("%w: it has PrivateNetwork=yes, and no network", ErrUnfit)
	}
	if strings.ContainsAny(smcr, " \t\"'\\%$;") {
		return fmt.Errorf("%w: systemd would not understand the path %q: install smcr elsewhere", ErrUnfit, smcr)
	}
	if hides := hidden(u, smcr); hides != "" {
		return fmt.Errorf("%w: it has %s, which hides %s: install smcr in /usr/local/bin", ErrUnfit, hides, smcr)
	}
	return nil
}

// loaded returns why a unit cannot be used at all.
func loaded(u Unit) error {
	switch state := u.Props["LoadState"]; state {
	case "loaded":
		return nil
	case "not-found":
		return fmt.Errorf("%w: there is no unit %s: see 'systemctl list-unit-files --type=service'", ErrNotFound, u.Name)
	case "masked":
		return fmt.Errorf("%w: unit %s is masked: 'systemctl unmask %s' first", ErrUnfit, u.Name, strings.TrimSuffix(u.Name, ".service"))
	default:
		return fmt.Errorf("%w: unit %s is %s: %s", ErrUnfit, u.Name, state, u.Props["LoadError"])
	}
}

// something returns an error if a service starts no program.
func something(u Unit) error {
	if !nothing(u.exec()) {
		return nil
	}
	if parts := services(u.Props["ConsistsOf"]); len(parts) > 0 {
		return fmt.Errorf("%w: %s stands for others: 'smcr service enable %s'", ErrNoProgram, u.Name, strings.Join(parts, " "))
	}
	return fmt.Errorf("%w: %s", ErrNoProgram, u.Name)
}

// nothing reports whether all commands do nothing, as in a unit that stands for others.
func nothing(exec []string) bool {
	for _, value := range exec {
		if p := path.Base(parseCommand(value).program()); p != "true" && p != ":" {
			return false
		}
	}
	return true
}

// services returns the services of a list of units, without suffix.
func services(list string) (names []string) {
	for _, name := range strings.Fields(list) {
		if name, ok := strings.CutSuffix(name, ".service"); ok {
			names = append(names, name)
		}
	}
	return names
}

// hidden returns the setting of a unit that hides a file.
func hidden(u Unit, file string) string {
	in := func(dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(d string) bool { return d == "/" || strings.HasPrefix(file, d+"/") })
	}
	switch {
	case u.on("ProtectHome") && u.setting("ProtectHome") != "read-only" && in("/home", "/root", "/run/user"):
		return "ProtectHome=" + u.setting("ProtectHome")
	case u.on("PrivateTmp") && in("/tmp", "/var/tmp"):
		return "PrivateTmp=" + u.setting("PrivateTmp")
	}
	for setting, dir := range u.hiddenDirs() {
		if in(dir) {
			return setting + "=" + dir
		}
	}
	return ""
}

// hiddenDirs yields the directories that a unit hides from its program, each with the setting.
func (u Unit) hiddenDirs() iter.Seq2[string, string] {
	return func(yield func(setting, dir string) bool) {
		for _, setting := range []string{"InaccessiblePaths", "TemporaryFileSystem"} {
			for _, word := range u.words(setting) {
				if dir, _, _ := strings.Cut(strings.TrimLeft(word, "-+"), ":"); !yield(setting, dir) {
					return
				}
			}
		}
	}
}

// sandbox returns the settings with which smcr run works within the sandbox of a unit.
func sandbox(u Unit, smcr string, d *DropIn) string {
	var b strings.Builder
	if len(u.words("NoExecPaths")) > 0 {
		fmt.Fprintf(&b, "ExecPaths=%s\n", smcr)
	}
	if len(u.words("SystemCallFilter")) > 0 {
		fmt.Fprintf(&b, "SystemCallFilter=%s\n", calls)
		d.Notes = append(d.Notes, "the program may use these system calls, too: "+calls+".")
	}
	if more := forbidden(u.Settings["RestrictAddressFamilies"], "AF_NETLINK", "AF_UNIX"); len(more) > 0 {
		fmt.Fprintf(&b, "RestrictAddressFamilies=%s\n", strings.Join(more, " "))
	}
	if user := u.setting("User"); (user == "" || user == "root" || user == "0") && len(forbidden(u.Settings["CapabilityBoundingSet"], tracing)) > 0 {
		fmt.Fprintf(&b, "# For a program that changes its user.\nCapabilityBoundingSet=%s\n", tracing)
		d.Notes = append(d.Notes, "the program has CAP_SYS_PTRACE, too, as long as it is root.")
	}
	for _, dir := range u.hiddenDirs() {
		if dir == "/run" || dir == "/var/run" {
			b.WriteString("# The sockets of the stack.\nBindReadOnlyPaths=-/run/smcr\n")
		}
	}
	return b.String()
}

// forbidden returns those of some words that a setting such as RestrictAddressFamilies= forbids. Its
// first value says whether it lists what is permitted or, after ~, what is forbidden.
func forbidden(values []string, words ...string) (no []string) {
	if len(values) == 0 {
		return nil
	}
	deny := strings.HasPrefix(values[0], "~")
	listed := map[string]bool{}
	for _, v := range values {
		v, less := strings.CutPrefix(v, "~")
		for _, w := range strings.Fields(v) {
			listed[w] = less == deny
		}
	}
	for _, w := range words {
		if listed[w] == deny {
			no = append(no, w)
		}
	}
	return no
}
