// Runs Go's clients against a server whose commands are redirected.
//
//	clients go-redis ADDRESS
//	clients go-ycsb ADDRESS WORKLOADS RECORDS OPERATIONS
//
// WORKLOADS is the folder of go-ycsb's workloads a to f, which are run with its driver for Redis, unchanged, with strings
// and with hashes. The values that are read are checked. Prints a line for each step, and ends with 1 if one failed.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
	"github.com/redis/go-redis/v9"

	_ "github.com/pingcap/go-ycsb/db/redis"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
)

var failed = false

// step runs one step, which fails if it panics.
func step(name string, run func()) {
	defer func() {
		if why := recover(); why != nil {
			fmt.Printf("FAILED %s: %v\n", name, why)
			failed = true
		} else {
			fmt.Printf("ok %s\n", name)
		}
	}()
	run()
}

// is checks the result of a call.
func is[T any](expected T) func(T, error) {
	return func(found T, err error) {
		if err != nil || !reflect.DeepEqual(found, expected) {
			panic(fmt.Sprintf("%v (%v), expected %v", found, err, expected))
		}
	}
}

// isWithin checks the result of a call.
func isWithin(low, high time.Duration) func(time.Duration, error) {
	return func(found time.Duration, err error) {
		if err != nil || found < low || found > high {
			panic(fmt.Sprintf("%v (%v), expected %v to %v", found, err, low, high))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func goRedis(address string, protocol int) {
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
	defer c.Close()
	of := func(name string) string { return fmt.Sprintf("go-redis, RESP%d: %s", protocol, name) }

	step(of("strings"), func() {
		check(c.FlushAll(ctx).Err())
		is("OK")(c.Set(ctx, "a", "1", 0).Result())
		is(false)(c.SetNX(ctx, "a", "2", 0).Result())
		is("1")(c.SetArgs(ctx, "a", "2", redis.SetArgs{Get: true}).Result())
		is("2")(c.GetSet(ctx, "a", "3").Result())
		is("3")(c.GetEx(ctx, "a", time.Minute).Result())
		isWithin(50*time.Second, time.Minute)(c.TTL(ctx, "a").Result())
		is(true)(c.Persist(ctx, "a").Result())
		is("3")(c.GetDel(ctx, "a").Result())
		if err := c.Get(ctx, "a").Err(); err != redis.Nil {
			panic(err)
		}
		is("OK")(c.MSet(ctx, "a", 1, "b", 2).Result())
		is([]any{"1", nil, "2"})(c.MGet(ctx, "a", "x", "b").Result())
		is(int64(11))(c.IncrBy(ctx, "a", 10).Result())
		is(11.5)(c.IncrByFloat(ctx, "a", 0.5).Result())
		is(int64(6))(c.Append(ctx, "a", "xy").Result())
		is("xy")(c.GetRange(ctx, "a", -2, -1).Result())
		is(int64(0))(c.SetBit(ctx, "bits", 7, 1).Result())
		is(int64(1))(c.GetBit(ctx, "bits", 7).Result())
		if err := c.Incr(ctx, "a").Err(); err == nil {
			panic("a text was counted")
		}
	})
	step(of("hashes"), func() {
		is(int64(2))(c.HSet(ctx, "h", map[string]any{"f": "1", "g": "2"}).Result())
		is(map[string]string{"f": "1", "g": "2"})(c.HGetAll(ctx, "h").Result())
		is([]any{"1", nil})(c.HMGet(ctx, "h", "f", "x").Result())
		is(int64(4))(c.HIncrBy(ctx, "h", "f", 3).Result())
		is(true)(c.HExists(ctx, "h", "f").Result())
		is(int64(1))(c.HDel(ctx, "h", "g", "x").Result())
		is([]redis.KeyValue{{Key: "f", Value: "4"}})(c.HRandFieldWithValues(ctx, "h", 2).Result())
		var scanned struct {
			F int `redis:"f"`
		}
		check(c.HGetAll(ctx, "h").Scan(&scanned))
		is(4)(scanned.F, nil)
		for n := range 500 {
			check(c.HSet(ctx, "many", strconv.Itoa(n), n).Err())
		}
		fields, iter := 0, c.HScan(ctx, "many", 0, "", 50).Iterator()
		for iter.Next(ctx) {
			fields++
		}
		is(1000)(fields, iter.Err())
	})
	step(of("keys"), func() {
		is("hash")(c.Type(ctx, "h").Result())
		is(int64(1))(c.Copy(ctx, "h", "copy", 0, false).Result())
		is("OK")(c.Rename(ctx, "copy", "renamed").Result())
		is(int64(1))(c.Exists(ctx, "copy", "renamed").Result())
		is(true)(c.ExpireAt(ctx, "renamed", time.Now().Add(time.Hour)).Result())
		isWithin(59*time.Minute, time.Hour)(c.PTTL(ctx, "renamed").Result())
		is(int64(1))(c.Unlink(ctx, "renamed").Result())
		for n := range 500 {
			check(c.Set(ctx, fmt.Sprintf("key:%d", n), n, 0).Err())
		}
		keys, iter := map[string]bool{}, c.Scan(ctx, 0, "key:*", 50).Iterator()
		for iter.Next(ctx) {
			keys[iter.Val()] = true
		}
		is(500)(len(keys), iter.Err())
	})
	step(of("pipelines, transactions and scripts"), func() {
		replies, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range 1000 {
				pipe.Incr(ctx, fmt.Sprintf("count:%d", n%10))
			}
			return nil
		})
		is(1000)(len(replies), err)
		is("100")(c.Get(ctx, "count:9").Result())
		add := func(tx *redis.Tx) error {
			n, err := tx.Get(ctx, "count:9").Int()
			check(err)
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				return pipe.Set(ctx, "count:9", n+1, 0).Err()
			})
			return err
		}
		check(c.Watch(ctx, add, "count:9"))
		script := redis.NewScript(`return redis.call("INCRBY", KEYS[1], ARGV[1])`)
		is[any](int64(106))(script.Run(ctx, c, []string{"count:9"}, 5).Result())
	})
	step(of("the server's own types"), func() {
		is(int64(2))(c.RPush(ctx, "list", "a", "b").Result())
		is([]string{"a", "b"})(c.LRange(ctx, "list", 0, -1).Result())
		is(int64(1))(c.SAdd(ctx, "set", "a").Result())
		is("list")(c.Type(ctx, "list").Result())
		is(int64(2))(c.Del(ctx, "list", "set").Result())
		check(c.FlushAll(ctx).Err())
		is(int64(0))(c.DBSize(ctx).Result())
	})
}

// counted counts what a database does, and what it fails to do.
type counted struct {
	ycsb.DB
	done, scans atomic.Int64
	failed      atomic.Pointer[error]
}

func (db *counted) count(err error) error {
	if err != nil {
		db.failed.Store(&err)
	} else {
		db.done.Add(1)
	}
	return err
}

func (db *counted) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	found, err := db.DB.Read(ctx, table, key, fields)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s is not there", key)
	}
	return found, db.count(err)
}

func (db *counted) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	return db.count(db.DB.Update(ctx, table, key, values))
}

func (db *counted) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	return db.count(db.DB.Insert(ctx, table, key, values))
}

// Scan counts scans, which go-ycsb's driver for Redis does not have.
func (db *counted) Scan(context.Context, string, string, int, []string) ([]map[string][]byte, error) {
	db.scans.Add(1)
	return nil, nil
}

func goYCSB(address, workloads, records, operations string) {
	for _, datatype := range []string{"string", "hash"} {
		for _, name := range []string{"load", "a", "b", "c", "f", "d", "e"} {
			file := name
			if name == "load" {
				file = "a"
			}
			step(fmt.Sprintf("go-ycsb, %s: %s", datatype, name), func() {
				p := properties.MustLoadFile(filepath.Join(workloads, "workload"+file), properties.UTF8)
				settings := map[string]string{
					"recordcount": records, "operationcount": operations, "threadcount": "8",
					"dataintegrity": "true", "dotransactions": strconv.FormatBool(name != "load"),
					"dropdata": strconv.FormatBool(name == "load"), "measurementtype": "histogram",
					"redis.addr": address, "redis.datatype": datatype,
				}
				for key, value := range settings {
					_, _, err := p.Set(key, value)
					check(err)
				}
				measurement.InitMeasure(p)
				workload, err := ycsb.GetWorkloadCreator("core").Create(p)
				check(err)
				inner, err := ycsb.GetDBCreator("redis").Create(p)
				check(err)
				db := &counted{DB: inner}
				client.NewClient(p, workload, db).Run(context.Background())
				check(db.Close())
				if why := db.failed.Load(); why != nil {
					panic(*why)
				}
				fmt.Printf("%d operations", db.done.Load())
				if scans := db.scans.Load(); scans > 0 {
					fmt.Printf("; %d scans left out, which its driver does not have", scans)
				}
				fmt.Println()
				wanted := operations
				if name == "load" {
					wanted = records
				}
				if least, _ := strconv.ParseInt(wanted, 10, 64); db.done.Load()+db.scans.Load() < least {
					panic("too few")
				}
			})
		}
	}
}

func main() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "go-redis":
		for _, protocol := range []int{2, 3} {
			goRedis(args[1], protocol)
		}
	case len(args) == 5 && args[0] == "go-ycsb":
		goYCSB(args[1], args[2], args[3], args[4])
	default:
		fmt.Println("usage: clients go-redis ADDRESS | go-ycsb ADDRESS WORKLOADS RECORDS OPERATIONS")
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}
