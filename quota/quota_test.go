// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/sharetest"
)

func TestBudget(t *testing.T) {
	b := New(Limits{Total: 256})
	b.owner = 0
	const first, second, third = 1000, 1001, 1002
	if err := b.Take(first, b.user); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if err := b.Take(first, 1); !errors.Is(err, syscall.EUSERS) || !errors.As(err, &e) || e.Taken != b.user || e.Limit != b.user {
		t.Errorf("beyond a user's limit: %v", err)
	}
	if err := b.Take(second, b.others-b.user); err != nil {
		t.Fatal(err)
	}
	if err := b.Take(third, 1); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("beyond everybody's limit: %v", err)
	}
	if b.all-b.others < rootLeast || 256-b.all < 48 {
		t.Errorf("%d of 256 descriptors for all, %d for users", b.all, b.others)
	}
	if err := b.Take(0, b.all-b.others); err != nil {
		t.Errorf("root: %v", err)
	}
	if err := b.Take(0, 1); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("root beyond what the process needs: %v", err)
	}
	if err := b.Take(third, 1); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("beyond everybody's limit, root's included: %v", err)
	}
	b.Give(0, b.all-b.others)
	b.Give(first, b.user)
	if err := b.Take(third, 1); err != nil {
		t.Errorf("after others gave back: %v", err)
	}
	b.Give(second, b.others-b.user)
	b.Give(third, 1)
	if b.taken != 0 || len(b.users) != 0 {
		t.Errorf("left over: %d, %v", b.taken, b.users)
	}
}

// TestBudgetOfUsers: users who together have all descriptors that they can leave some for the next
// user, unless the administrator gives one user more than half.
func TestBudgetOfUsers(t *testing.T) {
	for _, n := range []int{1, 4} {
		b := New(Limits{Total: 1024})
		b.owner = 0
		got := sharetest.Users(t, 6, func(uid uint32) bool { return b.Take(uid, n) == nil })
		if got[0] != b.user/n {
			t.Errorf("%v, %d for one", got, b.user)
		}
		var e *Error
		if err := b.Take(sharetest.First+1, n); !errors.As(err, &e) || e.Errno != syscall.EUSERS || e.Limit < e.Taken {
			t.Errorf("beyond: %v", err)
		}
	}
	b := New(Limits{Total: 1024, User: 1000})
	b.owner = 0
	if err := b.Take(1000, b.others); err != nil {
		t.Errorf("one user may have all: %v", err)
	}
}

func TestBudgetSizes(t *testing.T) {
	for total := range 70000 {
		for _, user := range []int{0, 1, total, 2 * total} {
			b := New(Limits{Total: total, User: user})
			if total > 0 && (b.all > total || b.others > b.all || b.user > b.others || b.user < 0) {
				t.Fatalf("of %d, for one user %d: %d for all, %d for users, %d for one", total, user, b.all, b.others, b.user)
			}
		}
	}
	if b := New(Limits{}); b.all <= 0 {
		t.Errorf("by the limit of this process: %+v", b)
	}
	var none *Budget
	if err := none.Take(1, 1<<30); err != nil {
		t.Error(err)
	}
	none.Give(1, 1<<30)
}

// TestAccept: nothing but a closed listener, or the end of the context, ends it.
func TestAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, nil, syscall.ECONNABORTED, syscall.EINTR, syscall.EPERM, errors.New("anything"), nil}
		accept := func() (int, error) {
			if len(answers) == 0 {
				return 0, net.ErrClosed
			}
			err := answers[0]
			answers = answers[1:]
			return 1, err
		}
		served := 0
		log := slog.New(slog.DiscardHandler)
		if err := Accept(t.Context(), accept, func(n int) { served += n }, log); !errors.Is(err, net.ErrClosed) || served != 2 {
			t.Errorf("%v, %d served", err, served)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		calls := 0
		begin := time.Now()
		if err := Accept(ctx, func() (int, error) { calls++; return 0, syscall.EMFILE }, func(int) {}, log); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != time.Minute || calls > 80 {
			t.Errorf("%d calls in %v", calls, took)
		}
	})
}
