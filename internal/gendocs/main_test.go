// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools"
	"smcr/internal/testing/testkind"

	"github.com/google/go-cmp/cmp"
)

// TestUpToDate fails if the files in the tree are not those that make generate writes.
func TestUpToDate(t *testing.T) {
	const root = "../.."
	files := generated(t)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Errorf("%v: run go generate ./internal/gendocs", err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate ./internal/gendocs", name)
		}
	}
	for _, dir := range []string{"man", "completions"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, ok := files[filepath.Join(dir, e.Name())]; !ok {
				t.Errorf("%s/%s belongs to no command", dir, e.Name())
			}
		}
	}
}

func TestDirectory(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
		ok   bool
	}{
		{nil, ".", true},
		{[]string{"../.."}, "../..", true},
		{[]string{"./-h"}, "./-h", true},
		{[]string{"-h"}, "", false},
		{[]string{"--help"}, "", false},
		{[]string{"-"}, "", false},
		{[]string{"..", "-h"}, "", false},
		{[]string{"man", "completions"}, "", false},
	} {
		if got, err := directory(tt.args); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q: %q, %v", tt.args, got, err)
		}
	}
}

func generated(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestCommands checks that each command has a text of its own, and that each program of
// smc-tools has a page and a completion.
func TestCommands(t *testing.T) {
	own, err := readTexts()
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range nouns(newRoot()) {
		if _, ok := own["smcr-"+cmd.Name()+".8"]; !ok {
			t.Errorf("smcr %s has no text: add pages/smcr-%s.8.txt", cmd.Name(), cmd.Name())
		}
	}
	files := generated(t)
	for _, name := range tools {
		for _, file := range []string{"man/" + name + ".8", "completions/" + name + ".bash"} {
			if files[file] == nil {
				t.Errorf("no %s", file)
			}
		}
	}
}

var tools = []string{"smcd", "smcss", "smc_pnet", "smc_run", "smc_rnics", "smc_chk", "smc_dbg"}

// TestToolOptions compares the options in the pages with those in the help of the
// programs.
func TestToolOptions(t *testing.T) {
	own, err := readTexts()
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`(?m)^\s+(-\w)(?:, (--[\w-]+))?`)
	for _, name := range tools {
		if name == "smcd" {
			continue // the form of its help is different
		}
		streams, _, out, _ := cmdutil.MemoryStreams()
		f := &cmdutil.Factory{IO: streams, Backend: "auto", Dial: cmdutil.Dial}
		if status := smctools.Run(context.Background(), f, smctools.Lookup(name), []string{name, "-h"}); status != 0 {
			t.Errorf("%s -h: status %d", name, status)
		}
		var want, got []string
		for _, m := range word.FindAllStringSubmatch(out.String(), -1) {
			want = append(want, strings.TrimSuffix(m[1]+", "+m[2], ", "))
		}
		for _, o := range toolOptions(own[name+".8"]) {
			if o.names[0] != "--backend" {
				got = append(got, strings.Join(o.names, ", "))
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: options of -h (-) and of the page (+):\n%s", name, diff)
		}
	}
}

// TestColumns checks that the page of a command has a text for each column of its tables
// and for each JSON field.
func TestColumns(t *testing.T) {
	for page, code := range map[string]string{
		"linkgroup": "cmd/linkgroup.go", "link": "cmd/link.go", "device": "cmd/device.go", "connection": "cmd/connection.go",
		"pnet": "cmd/pnet.go", "ueid": "cmd/ueid.go", "seid": "cmd/seid.go", "hslimit": "cmd/hslimit.go", "stats": "cmd/stats*.go",
		"info": "cmd/info.go", "check": "check/*.go", "rnics": "cmd/rnics.go", "apply": "cmd/apply.go", "explain": "cmd/explain.go", "verbs": "verbs/*.go",
		"topology": "topology/*.go", "trace": "trace/decode/*.go", "why": "why/*.go",
	} {
		text, err := os.ReadFile("pages/smcr-" + page + ".8.txt")
		if err != nil {
			t.Fatal(err)
		}
		columns, fields := printed(t, filepath.Join("..", code))
		if len(columns)+len(fields) == 0 {
			t.Errorf("%s: nothing found in its package", page)
		}
		for _, c := range columns {
			if !strings.Contains(string(text), "\n= "+c+" (") && !strings.Contains(string(text), "\n= "+c+"\n") {
				t.Errorf("smcr-%s.8.txt: no column %s", page, c)
			}
		}
		for _, f := range fields {
			if !regexp.MustCompile(`[(_*]` + f + `[)_*]`).Match(text) {
				t.Errorf("smcr-%s.8.txt: no JSON field %s", page, f)
			}
		}
	}
}

// printed returns the columns and JSON fields in files: the arguments of output.NewTable
// and of col of package cmd, and the tags. Lists of package cmd have a column Stack,
// except local ones.
func printed(t *testing.T, pattern string) (columns, fields []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	add := func(args []ast.Expr) {
		for _, a := range args {
			if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				s, _ := strconv.Unquote(lit.Value)
				columns = append(columns, strings.TrimPrefix(s, ">"))
			}
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		list, local := false, false
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				switch f := n.Fun.(type) {
				case *ast.SelectorExpr:
					if f.Sel.Name == "NewTable" {
						add(n.Args)
					}
				case *ast.Ident:
					if f.Name == "col" {
						list = true
						add(n.Args[:1])
					}
				}
			case *ast.KeyValueExpr:
				local = local || fmt.Sprint(n.Key) == "local"
			case *ast.Field:
				if n.Tag != nil {
					s, _ := strconv.Unquote(n.Tag.Value)
					if name, _, _ := strings.Cut(reflect.StructTag(s).Get("json"), ","); name != "" && name != "-" {
						fields = append(fields, name)
					}
				}
			}
			return true
		})
		if list && !local {
			columns = append(columns, "Stack")
		}
	}
	return columns, fields
}

// TestBash runs the completions in bash.
func TestBash(t *testing.T) {
	testkind.System(t)
	bash, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("needs bash: apt install bash")
	}
	files := generated(t)
	for _, test := range []struct{ line, want string }{
		{"smcd ", "info"}, {"smcd -d se", "seid"}, {"smcd --backend u", "user"}, {"smcd ueid f", "flush"}, {"smcd --backend user li", "linkgroup"},
		{"smcss --l", "--listening"}, {"smc_pnet -I l", "lo"}, {"smc_pnet -P ", "2"}, {"smc_pnet --del", "--delete"},
		{"smc_rnics --ena", "--enable"}, {"smc_chk -C", "-C"}, {"smc_chk --pnetid l", "lo"}, {"smc_dbg --t", "--tgz"},
		{"smc_run -", "-r"}, {"smc_run bas", "bash"}, {"smc_run -r 1M bas", "bash"},
		{"smc_run iperf3 -", ""}, {"smc_run iperf3 -t ", ""}, {"smc_run -r ", ""}, {"smcd info show ", ""},
		{"smc_pnet -a -D so", "soft-eth0"}, {"smc_pnet --delete N", "NET1"}, {"smcd ueid del E", "EXAMPLE"},
	} {
		words := strings.Split(test.line, " ")
		script := string(files["completions/"+words[0]+".bash"]) +
			"smcr() { case $2 in pnet) printf 'soft-eth0\nNET1\n:4\n' ;; ueid) printf 'EXAMPLE\n:4\n' ;; esac; }\n" +
			"COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _smcr_" + words[0] + "; printf '%s\\n' \"${COMPREPLY[@]}\""
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "-euc", script, "bash"}, words...)...)
		out, err := cmd.CombinedOutput()
		if test.want == "" && err == nil && len(bytes.TrimSpace(out)) == 0 {
			continue
		}
		if err != nil || !slices.Contains(strings.Fields(string(out)), test.want) {
			t.Errorf("%q: %q, %v; want %q among them", test.line, out, err, test.want)
		}
	}
}

// TestBashHostile: the names of devices are words that bash does not read as a command, and what it
// inserts is one word.
func TestBashHostile(t *testing.T) {
	testkind.System(t)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash: apt install bash")
	}
	dir := t.TempDir()
	names := []string{"lo", "$(>made)", "`>made`", "$HOME", "a;>made", "a'b", `a"b`, `a\b`, "*", "?", "~", "{a,b}", "!!", "<(>made)", "$'\\e'", "\x1b[2J", "\u202ea"}
	files := generated(t)
	for _, line := range []string{"smc_pnet -I ", "smc_chk --pnetid ", "smc_pnet -D ", "smc_pnet --delete ", "smcd ueid del ", "smc_rnics --enable "} {
		words := strings.Split(line, " ")
		script := string(files["completions/"+words[0]+".bash"]) +
			"ls() { cat names; }\nsmcr() { cat names; echo :4; }\n" +
			"COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _smcr_" + words[0] + "\n" +
			// What the shell reads when the line is run.
			"for w in \"${COMPREPLY[@]}\"; do eval \"printf '%s\\\\0' $w\"; done"
		if err := os.WriteFile(filepath.Join(dir, "names"), []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "-euc", script, "bash"}, words...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", line, err, out)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		for _, name := range names {
			if !slices.Contains(got, name) {
				t.Errorf("%q: %q is not among %q", line, name, got)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
			t.Fatalf("%q: the name of a device was run", line)
		}
	}
}
