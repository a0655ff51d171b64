// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"
	"strings"
	"syscall"

	"smcr/internal/smctools/tool"
	"smcr/nl"
)

// smcr prints this text too.
const ueidUsage = "Usage: smcd ueid [show]\n" +
	"       smcd ueid add <eid>\n" +
	"       smcd ueid del <eid>\n" +
	"       smcd ueid flush\n"

const seidUsage = "Usage: smcd seid [show]\n" +
	"       smcd seid enable\n" +
	"       smcd seid disable\n"

// command returns the first of names that a word abbreviates, or "".
func command(word string, names ...string) string {
	for _, n := range names {
		if tool.IsPrefix(word, n) {
			return n
		}
	}
	return ""
}

// ueid carries out the object ueid.
func (t *commandLine) ueid(args []string) int {
	cmd := "show"
	if len(args) > 0 {
		cmd = command(args[0], "help", "add", "del", "flush", "show")
		args = args[1:]
	}
	switch want := map[string]int{"add": 1, "del": 1, "flush": 0, "show": 0}; {
	case cmd == "" || cmd == "help" || len(args) < want[cmd]:
		return t.misused(ueidUsage)
	case want[cmd] == 1:
		// The ID is checked before the words after it.
		if text := checkEID(args[0]); text != "" {
			t.Errorf("Error: Invalid User EID specified: %s\n", text)
			if strings.HasPrefix(text, unsupported) {
				t.Errorf("       Supported characters are: A-Z, 0-9, '.' and '-'\n")
			}
			return tool.Failed
		}
		if len(args) > 1 {
			return t.misused(ueidUsage)
		}
	case len(args) > 0:
		return t.misused(ueidUsage)
	}
	var err error
	switch cmd {
	case "add":
		err = t.ctl.AddUEID(t.ctx, args[0])
	case "del":
		err = t.ctl.RemoveUEID(t.ctx, args[0])
	case "flush":
		err = t.ctl.FlushUEID(t.ctx)
	case "show":
		var list []string
		list, err = t.ctl.UEIDs(t.ctx)
		for _, eid := range list {
			t.Printf("%-32s\n", eid)
		}
	}
	if err != nil {
		t.Errorf("%s\n", ueidError(cmd, err))
		return tool.Failed
	}
	return 0
}

// ueidError returns the message for a failure of a command.
func ueidError(cmd string, err error) string {
	switch {
	case errors.Is(err, nl.ErrNotSupported):
		return "Error: operation not supported by kernel"
	case cmd == "del" && tool.IsErrno(err, syscall.ENOENT):
		return "Error: specified User EID is not defined"
	case cmd == "del" && tool.IsErrno(err, syscall.EAGAIN):
		return "Info: the System EID was activated because the last User EID was removed"
	case cmd == "add" && tool.IsErrno(err, syscall.EINVAL):
		return "Error: specified User EID was rejected by the kernel"
	case cmd == "add" && tool.IsErrno(err, syscall.ENOMEM):
		return "Error: kernel reported an out of memory condition"
	case cmd == "add" && tool.IsErrno(err, syscall.ERANGE):
		return "Error: specified User EID was rejected because the maximum number of User EIDs is reached"
	case cmd == "add" && tool.IsErrno(err, syscall.EEXIST):
		return "Error: specified User EID is already defined"
	}
	return "Error: " + tool.ErrorText(err)
}

// unsupported begins the error for a character that enterprise IDs cannot have.
const unsupported = "unsupported character: "

// checkEID returns the error in an enterprise ID, or "".
func checkEID(eid string) string {
	if len(eid) > nl.MaxEIDLen {
		return "EID is longer than 32 characters"
	}
	s := strings.TrimRight(eid, " \t\n\v\f\r")
	if s == "" {
		return "EID is empty"
	}
	if c := s[0] | 0x20; (c < 'a' || c > 'z') && (s[0] < '0' || s[0] > '9') {
		return "first character must be alphanumeric"
	}
	if strings.Contains(s, "..") {
		return "consecutive dots not allowed"
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return unsupported + "'" + s[i:i+1] + "'"
		}
	}
	return ""
}

// seid carries out the object seid, which only smcd has.
func (t *commandLine) seid(args []string) int {
	cmd := "show"
	if len(args) > 0 {
		cmd = command(args[0], "help", "enable", "disable", "show")
	}
	if cmd == "" || cmd == "help" || len(args) > 1 {
		return t.misused(seidUsage)
	}
	id, err := t.ctl.SEID(t.ctx)
	if cmd == "show" {
		switch {
		case err != nil:
			return t.seidFailed(cmd, err)
		case id.Value == "":
			t.Printf("n/a\n")
		case id.Enabled:
			t.Printf("%-32s [enabled]\n", id.Value)
		default:
			t.Printf("%-32s [disabled]\n", id.Value)
		}
		return 0
	}
	if err != nil {
		t.failed(err)
	}
	if err != nil || id.Value == "" {
		t.Printf("Error: System EID not available\n")
		return tool.Failed
	}
	if err := t.ctl.SetSEID(t.ctx, cmd == "enable"); err != nil {
		return t.seidFailed(cmd, err)
	}
	return 0
}

func (t *commandLine) seidFailed(cmd string, err error) int {
	switch {
	case errors.Is(err, nl.ErrNotSupported):
		t.Errorf("Error: operation not supported by kernel\n")
	case cmd == "disable" && tool.IsErrno(err, syscall.ENOENT):
		t.Errorf("Error: System EID cannot be disabled because no User EID is defined\n")
	default:
		t.Errorf("Error: %s\n", tool.ErrorText(err))
	}
	return tool.Failed
}
