// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"context"
	"errors"
	"io"
	"strings"

	"smcr/internal/smctools/tool"
	"smcr/nl"
)

// A commandLine is one command line of smcr or smcd.
type commandLine struct {
	*tool.Env
	smcd     bool
	details  int // 0, 1 with -d, 2 with -dd
	absolute bool

	ctx context.Context
	ctl nl.Control
}

// objects are the objects of smcd, in the order in which abbreviations are looked up.
// smcr has all except seid.
var objects = []string{"device", "linkgroup", "info", "stats", "ueid", "seid", "help"}

// Object returns the object of smc-tools that a word names, or "".
func Object(word string) string {
	for _, o := range objects {
		if tool.IsPrefix(word, o) {
			return o
		}
	}
	return ""
}

// Main runs smcd if smcd is true, otherwise smcr, and returns its exit status. Messages
// have the name of that program, not e.Name.
func Main(ctx context.Context, e *tool.Env, smcd bool, args []string) int {
	t := &commandLine{Env: e, ctx: ctx, smcd: smcd}
	args, status, done := t.options(args)
	if done {
		return status
	}
	ctl, err := e.Open(ctx)
	if err != nil {
		return e.OpenFailed(err, "Error")
	}
	defer ctl.Close()
	t.ctl = ctl
	if len(args) == 0 {
		t.usage()
		return 0
	}
	switch Object(args[0]) {
	case "device":
		return t.device(args[1:])
	case "linkgroup":
		return t.linkgroup(args[1:])
	case "info":
		return t.info(args[1:])
	case "stats":
		return t.stats(args[1:])
	case "ueid":
		return t.ueid(args[1:])
	case "seid":
		if smcd {
			return t.seid(args[1:])
		}
		t.Errorf("Error: Object \"%s\" is valid for SMC-D only, try \"smcr help\".\n", args[0])
		return 1
	case "help":
		t.usage()
		return 0
	}
	t.Errorf("Error: Object \"%s\" is unknown, try \"%s help\".\n", args[0], t.program())
	return 1
}

func (t *commandLine) program() string {
	if t.smcd {
		return "smcd"
	}
	return "smcr"
}

func (t *commandLine) technology() string {
	if t.smcd {
		return "SMC-D"
	}
	return "SMC-R"
}

func (t *commandLine) usage() {
	objects, details := "ueid", " | -dd[etails]"
	if t.smcd {
		objects, details = "ueid | seid", ""
	}
	t.Errorf("Usage: %s  [ OPTIONS ] OBJECT {COMMAND | help}\n"+
		"where  OBJECT := {info | linkgroup | device | stats | %s}\n"+
		"       OPTIONS := {-v[ersion] | -d[etails]%s | -a[bsolute]}\n", t.program(), objects, details)
}

// KnowsOption reports whether a word is an option of smcr: one or two dashes and
// an abbreviation of a name.
func KnowsOption(word string) bool { return option(word) != "" }

// option returns the name of the option that a word abbreviates, or "". If there are
// several, the first one counts, as in smc-tools.
func option(word string) string {
	if strings.HasPrefix(word, "--") {
		word = word[1:]
	}
	if strings.HasPrefix(word, "-ad") || strings.HasPrefix(word, "-da") {
		return "absolute details"
	}
	for _, name := range []string{"absolute", "version", "details", "ddetails", "help"} {
		if tool.IsPrefix(word, "-"+name) {
			return name
		}
	}
	return ""
}

// options reads the options. If there are several, the last one counts. If done is
// true, the program ends with status.
func (t *commandLine) options(args []string) (rest []string, status int, done bool) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		word := args[0]
		if word == "--" {
			return args[1:], 0, false
		}
		switch option(word) {
		case "absolute details":
			t.absolute, t.details = true, 1
		case "absolute":
			t.absolute, t.details = true, 0
		case "details":
			t.absolute, t.details = false, 1
		case "ddetails":
			t.absolute, t.details = false, 2
		case "version":
			t.Errorf("%s utility, smc-tools-%s\n", t.program(), tool.Version)
			return nil, tool.Failed, true
		case "help":
			t.usage()
			return nil, 0, true
		default:
			if strings.HasPrefix(word, "--") {
				word = word[1:]
			}
			t.Errorf("Error: Option \"%s\" is unknown, try \"%s help\".\n", word, t.program())
			return nil, tool.Failed, true
		}
		args = args[1:]
	}
	return args, 0, false
}

// misused prints the usage of an object.
func (t *commandLine) misused(text string) int {
	_, _ = io.WriteString(t.IO.ErrOut, text)
	return tool.Failed
}

// failed prints an error of the stack. There is a special text for an operation that
// the stack does not support.
func (t *commandLine) failed(err error) int {
	if errors.Is(err, nl.ErrNotSupported) {
		t.Errorf("Error: Operation not supported by kernel\n")
	} else {
		t.Errorf("Error: %s\n", tool.ErrorText(err))
	}
	return tool.Failed
}

// detailLevel returns the level of details for device and linkgroup, for which -ad
// shows no details.
func (t *commandLine) detailLevel() int {
	if t.absolute {
		return 0
	}
	return t.details
}

// smcdControl returns the control interface of the stack for SMC-D.
func (t *commandLine) smcdControl() (nl.ControlSMCD, error) {
	c, ok := t.ctl.(nl.ControlSMCD)
	if !ok {
		if b, isBackend := t.ctl.(nl.Backend); isBackend {
			c, ok = b.Control.(nl.ControlSMCD)
		}
	}
	if !ok {
		return nil, nl.ErrNotSupported
	}
	return c, nil
}

// trim removes the padding of a kernel around s.
func trim(s string) string { return strings.Trim(s, " \t\n\v\f\r") }
