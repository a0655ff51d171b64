// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"encoding/csv"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"smcr/userstack"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("sql: ")
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sql postgres://USER@HOST/DATABASE QUERY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// run prints the result of a query as CSV.
func run(ctx context.Context, url, query string) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	stack, err := userstack.New(userstack.Config{})
	if err != nil {
		return err
	}
	// Close tells the peers that the link groups end.
	defer func() { err = errors.Join(err, stack.Close()) }()
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := stack.DialContext(ctx, network, address)
		if err == nil {
			log.Printf("%s: SMC-R: %v", c.RemoteAddr(), userstack.IsSMC(c))
		}
		return c, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	return write(rows)
}

func write(rows *sql.Rows) error {
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	out := csv.NewWriter(os.Stdout)
	line := make([]string, len(columns))
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, v := range values {
			line[i] = v.String
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return errors.Join(rows.Err(), out.Error())
}
